"""Prints the output of a start, and vLLM's log once the server is running.

A thread of the command's process reads the held log, and notices when an API server accepts connections.
"""

import os
import sys
import threading
import time
from pathlib import Path

from ropeswitch.server.start.log.held_log import HeldLog
from ropeswitch.server.start.log.log_lines import OURS, LogLines
from ropeswitch.server.start.log.outlet import Outlet

# Interval between checks of the log and the ready file, in seconds.
SECONDS = 0.2
# Interval between lines of progress, in seconds.
PAUSE = 20.0
# Maximum characters of a line of progress.
MOST_CHARACTERS = 160
_STDOUT, _STDERR = 1, 2


class Console:
    """Prints the output of one start, and holds vLLM's log back until :meth:`release`.

    Args:
        versions: Of what is started; begins the first line.
        stage: The first stage of the start.

    Attributes:
        output: Standard output, which has the access log of every process.
        stage: The stage of the start that the progress shows, before the last line of vLLM's log.
        ready: The file whose lines to print once it exists; an API server writes it when it accepts connections.
        keep: Whether to keep the held log after the end of the start.
    """

    def __init__(self, versions: str, stage: str) -> None:
        self._began = time.monotonic()
        self.output = Outlet(_STDOUT, '{{"dropped": {}}}\n')
        self.output.pump()
        self._errors = Outlet(_STDERR, OURS + "{} lines dropped, as nobody read standard error\n")
        self._held, self._whole = HeldLog(), False
        self._lines = LogLines()
        self.stage = stage
        self.ready: Path | None = None
        self.keep = False
        self._next = PAUSE
        self._lock = threading.RLock()
        self._over = threading.Event()
        self.say(f"{versions}: {stage}; vLLM's log: {self.path} (--verbose prints it)")
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

    def release(self) -> None:
        """Print the log held so far, and all of it from now on."""
        with self._lock:
            if not self._whole:
                self._whole = True
                self._errors.put(self._held.read(whole=True))

    def close(self) -> None:
        """Print the rest of the log, and restore the standard streams."""
        self._over.set()
        self._thread.join()
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(self._errors.fd, _STDERR)
        self._show(self._held.read() + b"\n" * (not self._whole))
        self._held.close(keep=self.keep)
        self.output.close()
        self._errors.close()

    def _run(self) -> None:
        while not self._over.wait(SECONDS):
            # A ready server's lines come after those of its start.
            ready = self.ready if self.ready is not None and self.ready.exists() else None
            self.catch_up()
            if ready is not None:
                first, *rest = ready.read_text(encoding="utf-8").splitlines()
                self.say(f"ready in {time.monotonic() - self._began:.0f} s: {first}", *rest)
                self.ready, self._lines.serving = None, True

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
        if seconds >= self._next:
            self._next = seconds + PAUSE
            line = f"{OURS}{self.stage} ({seconds:.0f} s)" + (f": {self._lines.last}" if self._lines.last else "")
            self._print([line[:MOST_CHARACTERS]])

    def _print(self, lines: list[str]) -> None:
        with self._lock:
            self._errors.put("".join(f"{line}\n" for line in lines).encode(errors="replace"))
