"""Prints the output of a start, and vLLM's log once the server is running.

vLLM, transformers and torch log to standard error through Python, C++ libraries write there directly, and child processes
inherit it. So a pipe takes its place, which captures everything in order, and nothing has to be patched. Standard output has
the access log.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from threading import Event, RLock, Thread

from ropeswitch.server.start.log.log_lines import ANSI, OURS, is_shown, text_of
from ropeswitch.server.start.log.outlet import LAST_SECONDS, Outlet, piped

# Interval between checks of the ready file, and between lines of progress, in seconds.
SECONDS = 0.2
PAUSE = 30.0
# Maximum characters of a line of progress.
MOST_CHARACTERS = 160
# Lines of the log to hold until the server accepts requests; of more, the last ones.
MOST_LINES = 1000
# Ends the lines that are waited for.
_MARK = "ropeswitch: all lines before this one"
_STDOUT, _STDERR = 1, 2


class Console:
    """Prints the output of one start, and holds vLLM's log back until :meth:`release`, or until the server is ready.

    Args:
        versions: Of what is started; begins the first line.
        stage: The first stage of the start.

    Attributes:
        output: Standard output, which has the access log of every process.
        stage: The stage of the start that the progress shows, before the last line of vLLM's log.
        ready: The file whose lines to print once it exists; an API server writes it when it accepts connections.
        serving: Whether an API server has accepted connections.
        whole: Whether the log is printed whole, since :meth:`release`.
    """

    def __init__(self, versions: str, stage: str) -> None:
        self._began = time.monotonic()
        self.output = Outlet(_STDOUT, '{{"dropped": {}}}\n')
        self.output.pump()
        self._errors = Outlet(_STDERR, OURS + "{} lines dropped, as nobody read standard error\n")
        # vLLM logs to standard output by default.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        self.stage = stage
        self.ready: Path | None = None
        self.serving = self.whole = False
        self._held: deque[str] = deque(maxlen=MOST_LINES)
        self._last, self._next = "", PAUSE
        self._lock, self._over, self._marked = RLock(), Event(), Event()
        self.say(f"{versions}: {stage}; --verbose prints vLLM's log")
        sys.stderr.flush()
        Thread(target=self._read, args=(piped(_STDERR),), daemon=True).start()
        self._watcher = Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def say(self, *lines: str) -> None:
        """Print our own lines with a prefix, except for a line that begins with ``curl``, so that it can be copied."""
        self._print(line if line.startswith("curl ") else OURS + line for line in lines)

    def release(self) -> None:
        """Print the log held so far, and all of it from now on."""
        with self._lock:
            self._print(self._held)
            self._held.clear()
            self.whole = True

    def catch_up(self) -> None:
        """Print the lines of the log that were written before this call."""
        sys.stderr.flush()
        self._marked.clear()
        os.write(_STDERR, f"\n{_MARK}\n".encode())
        self._marked.wait(LAST_SECONDS)

    def close(self) -> None:
        """Print the rest of the log, and restore the standard streams."""
        self._over.set()
        self._watcher.join()
        self.catch_up()
        sys.stdout.flush()
        self.output.close()
        self._errors.close()

    def _watch(self) -> None:
        while not self._over.wait(SECONDS):
            with self._lock:
                if self.ready is not None and self.ready.exists():
                    first, *rest = self.ready.read_text(encoding="utf-8").splitlines()
                    self.say(f"ready in {time.monotonic() - self._began:.0f} s: {first}", *rest)
                    self.ready, self.serving = None, True
                    self._held.clear()
                elif not (self.serving or self.whole):
                    self._show_progress(time.monotonic() - self._began)

    def _show_progress(self, seconds: float) -> None:
        if seconds >= self._next:
            self._next = seconds + PAUSE
            line = f"{OURS}{self.stage} ({seconds:.0f} s)" + (f": {self._last}" if self._last else "")
            self._print([line[:MOST_CHARACTERS]])

    def _read(self, pipe: int) -> None:
        # A carriage return ends a line too, so the progress shows bars.
        with open(pipe, encoding="utf-8", errors="replace") as lines:
            for line in (ANSI.sub("", each).rstrip() for each in lines):
                if line == _MARK:
                    self._marked.set()
                elif line:
                    with self._lock:
                        self._take(line)

    def _take(self, line: str) -> None:
        if self.whole or is_shown(line, self.serving):
            self._print([line])
        elif not self.serving:
            self._held.append(line)
            self._last = self._last if line[0] == " " else text_of(line)  # a warning quotes code, indented

    def _print(self, lines: Iterable[str]) -> None:
        with self._lock:
            self._errors.put("".join(f"{line}\n" for line in lines).encode(errors="replace"))
