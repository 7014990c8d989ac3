"""Prints the output of a start, and vLLM's log once the server is running.

A thread of the command's process reads the held log, and notices when an API server accepts connections.
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ropeswitch.server.start.log.downloads import Downloads
from ropeswitch.server.start.log.held_log import HeldLog, without_room
from ropeswitch.server.start.log.log_lines import OURS, LogLines
from ropeswitch.server.start.log.progress import Progress

# Interval between checks of the log and the ready file, in seconds.
SECONDS = 0.2
_CLEAR = "\r\x1b[K"
_STDERR = 2


class Console:
    """Prints the output of one start.

    Args:
        first: The first line, which names the first stage at its end.
        stage: That stage.
        hold: Whether to hold vLLM's log; otherwise it goes to standard error and only our lines are printed.
    """

    def __init__(self, first: str, stage: str, *, hold: bool) -> None:
        self._began = time.monotonic()
        full = without_room() if hold else None
        self._held = HeldLog() if hold and full is None else None
        self._fd = self._held.terminal if self._held else _STDERR
        self._terminal = os.isatty(self._fd)
        self._lines = LogLines()
        self._progress: Progress | None = Progress(stage, self._began) if self._held else None
        self._downloads: Downloads | None = None
        self._ready: Path | None = None
        self._lock = threading.RLock()
        self._status = ""
        self._keep = False
        self._given_back = False
        self._over = threading.Event()
        self.say(first + (f"; vLLM's log: {self.path} (--verbose prints it)" if self.path else ""))
        if full is not None:
            self.say(f"vLLM's log is printed, because {full} is full")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def path(self) -> str | None:
        """The file that holds vLLM's log, or None where it is not held."""
        return self._held.path if self._held else None

    @property
    def serving(self) -> bool:
        """Whether an API server has accepted connections."""
        return self._lines.serving

    def say(self, *lines: str) -> None:
        """Print our own lines with a prefix, except for a line that begins with ``curl``, so that it can be copied."""
        self._print([line if line.startswith("curl ") else OURS + line for line in lines])

    def stage(self, stage: str) -> None:
        """Set the stage of the start to show; stages in vLLM's log replace it."""
        if self._progress is not None:
            self._progress.stage = stage

    def downloads_to(self, folder: Path) -> None:
        """Show the growth of this folder of the hub's cache as download progress."""
        self._downloads = Downloads(folder, time.monotonic())

    def ready_from(self, path: Path) -> None:
        """Print the lines of this file once it exists; an API server writes it when it accepts connections."""
        self._ready = path

    def release(self) -> None:
        """Print the log held so far, and stop holding it."""
        with self._lock:
            if (held := self._held) is None:
                return
            self._clear()
            held.release()
            self._held, self._progress, self._fd = None, None, _STDERR
            held.rewind()
            self._write(held.read())
            held.close(keep=False)

    def keep(self) -> str | None:
        """Keep the held log after the end of the start; returns its file, or None where nothing is held."""
        self._keep = self._held is not None
        return self.path

    def close(self) -> None:
        """Print the rest of the log, and restore standard error."""
        self._over.set()
        self._thread.join()
        if self._held is not None:
            self._held.release()
            self.catch_up()
            self._print(self._lines.rest())
            self._clear()
            self._held.close(keep=self._keep)
            self._held, self._fd = None, _STDERR

    def _run(self) -> None:
        while not self._over.wait(SECONDS):
            try:
                if self._ready is not None and self._ready.exists():
                    self._report_ready(self._ready)
                self.catch_up()
            except Exception as error:  # without this thread, a running server's log would not be shown
                self._give_back(f"vLLM's log could not be read: {type(error).__name__}: {error}")

    def catch_up(self) -> None:
        """Print the new lines of the log, and the progress."""
        with self._lock:
            if self._held is None:
                return
            lines = self._lines.feed(self._held.read())
            if self._lines.serving:
                self._held.cut()
            self._print(lines)
            if not self._held.has_room():
                self._give_back(f"the file system of {self.path} is full")
            if self._progress is None:
                return
            now = time.monotonic()
            if self._lines.stage is not None:
                self._progress.stage = self._lines.stage
            if self._downloads is not None:
                self._progress.instead = self._downloads.status(now)
            if self._terminal:
                self._rewrite(self._progress.status(now))
            elif line := self._progress.due(now):
                self.say(line)

    def _give_back(self, why: str) -> None:
        """Restore this process's standard error; the file is still read, because child processes keep writing to it."""
        with self._lock:
            if self._held is None or self._given_back:
                return
            self._given_back = True
            self._held.release()
            self._clear()
            self._progress = None
            self.say(f"{why}; printing the log from now on, and some lines may be missing")

    def _report_ready(self, path: Path) -> None:
        self._ready = self._progress = None
        self._clear()
        first, *rest = path.read_text(encoding="utf-8").splitlines()
        if self._lines.unseen:
            self.say(f"{self._lines.unseen} more startup warnings or errors are in {self.path}")
        self.say(f"ready in {time.monotonic() - self._began:.0f} s: {first}", *rest)
        self._lines.serving = True

    def _rewrite(self, status: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        with self._lock:
            self._status = (OURS + status)[:width]
            self._write((_CLEAR + self._status).encode())

    def _clear(self) -> None:
        with self._lock:
            if self._status:
                self._write(_CLEAR.encode())
                self._status = ""

    def _print(self, lines: list[str]) -> None:
        if not lines:
            return
        with self._lock:
            before = _CLEAR if self._status else ""
            text = before + "".join(f"{line}\n" for line in lines) + self._status
            self._write(text.encode(errors="replace"))

    def _write(self, data: bytes) -> None:
        # A closed terminal or pipe must not stop the server.
        with suppress(OSError):
            while data:
                data = data[os.write(self._fd, data) :]


@contextmanager
def opened(first: str, stage: str, *, hold: bool) -> Iterator[Console]:
    """Open a console for one start, and close it at the end; see :class:`Console`."""
    console = Console(first, stage, hold=hold)
    try:
        yield console
    finally:
        console.close()
