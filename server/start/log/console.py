"""Prints the output of a start, and vLLM's log once the server is running.

A thread of the command's process reads the held log, and notices when an API server accepts connections.
"""

import os
import shutil
import sys
import threading
import time
from pathlib import Path

from ropeswitch.server.start.log.held_log import HeldLog
from ropeswitch.server.start.log.log_lines import OURS, LogLines
from ropeswitch.server.start.log.outlet import Outlet

# Interval between checks of the log and the ready file, in seconds.
SECONDS = 0.2
# A terminal has one line of progress, rewritten. A pipe gets its first line FIRST seconds after the start. Each later line
# comes when the time since the start has doubled, at most LONGEST_PAUSE seconds after the line before.
FIRST = 10.0
LONGEST_PAUSE = 60.0
# Maximum characters of a line of progress in a pipe.
MOST_CHARACTERS = 160
_CLEAR = "\r\x1b[K"
_STDOUT, _STDERR = 1, 2


class Console:
    """Prints the output of one start.

    Args:
        versions: Of what is started; begins the first line.
        stage: The first stage of the start, at the end of that line.
        hold: Whether to hold vLLM's log back; otherwise it is printed whole as it comes.

    Attributes:
        output: Standard output, which has the access log of every process.
    """

    def __init__(self, versions: str, stage: str, *, hold: bool) -> None:
        self._began = time.monotonic()
        self.output = Outlet(_STDOUT, '{{"dropped": {}}}\n')
        self.output.pump()
        self._errors = Outlet(_STDERR, OURS + "{} lines dropped, as nobody read standard error\n")
        self._held, self._whole = HeldLog(), not hold
        self._terminal = os.isatty(self._errors.fd)
        self._lines = LogLines()
        self._stage = stage
        self._next = FIRST
        self._ready: Path | None = None
        self._lock = threading.RLock()
        self._status = ""
        self._keep = False
        self._over = threading.Event()
        self.say(f"{versions}: {stage}" + (f"; vLLM's log: {self.path} (--verbose prints it)" if self.path else ""))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def path(self) -> str | None:
        """The file that holds vLLM's log back, or None where it is printed."""
        return None if self._whole else self._held.path

    @property
    def serving(self) -> bool:
        """Whether an API server has accepted connections."""
        return self._lines.serving

    def say(self, *lines: str) -> None:
        """Print our own lines with a prefix, except for a line that begins with ``curl``, so that it can be copied."""
        self._print([line if line.startswith("curl ") else OURS + line for line in lines])

    def stage(self, stage: str) -> None:
        """Set the stage of the start that the progress shows, before the last line of vLLM's log."""
        self._stage = stage

    def ready_from(self, path: Path) -> None:
        """Print the lines of this file once it exists; an API server writes it when it accepts connections."""
        self._ready = path

    def release(self) -> None:
        """Print the log held so far, and all of it from now on."""
        with self._lock:
            if not self._whole:
                self._whole = True
                self._write(self._held.read(whole=True).decode(errors="replace"))

    def keep(self) -> str | None:
        """Keep the held log after the end of the start; returns its file, or None where nothing is held."""
        self._keep = not self._whole
        return self.path

    def close(self) -> None:
        """Print the rest of the log, and restore the standard streams."""
        self._over.set()
        self._thread.join()
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(self._errors.fd, _STDERR)
        self._write("")
        self._show(self._held.read() + b"\n" * (not self._whole))
        self._held.close(keep=self._keep)
        self.output.close()
        self._errors.close()

    def _run(self) -> None:
        while not self._over.wait(SECONDS):
            if self._ready is not None and self._ready.exists():
                self._report_ready(self._ready)
            self.catch_up()

    def catch_up(self) -> None:
        """Print the new lines of the log, and the progress."""
        with self._lock:
            self._show(self._held.read())
            if self.serving or self._whole:
                self._held.cut()
            else:
                self._show_progress(time.monotonic() - self._began)

    def _show(self, log: bytes) -> None:
        if self._whole:
            self._errors.put(log)
        else:
            self._print(self._lines.feed(log))

    def _show_progress(self, seconds: float) -> None:
        status = f"{OURS}{self._stage} ({seconds:.0f} s)" + (f": {self._lines.last}" if self._lines.last else "")
        if self._terminal:
            self._write("", status[: shutil.get_terminal_size().columns - 1])
        elif seconds >= self._next:
            self._next = seconds + min(seconds, LONGEST_PAUSE)
            self._print([status[:MOST_CHARACTERS]])

    def _report_ready(self, path: Path) -> None:
        first, *rest = path.read_text(encoding="utf-8").splitlines()
        self.catch_up()
        self._write("")
        self.say(f"ready in {time.monotonic() - self._began:.0f} s: {first}", *rest)
        self._ready, self._lines.serving = None, True

    def _print(self, lines: list[str]) -> None:
        if lines:
            self._write("".join(f"{line}\n" for line in lines), self._status)

    def _write(self, text: str, status: str = "") -> None:
        """Print text in place of the line of progress, and a line of progress after it."""
        with self._lock:
            self._errors.put(((_CLEAR if self._status else "") + text + status).encode(errors="replace"))
            self._status = status
