"""A standard stream whose stalled reader holds up no process of the server: its lines are dropped and counted instead."""

import os
import threading
from collections import deque
from contextlib import suppress
from multiprocessing import get_context

# Maximum bytes that wait for a reader; a single longer line is written if nothing else waits.
MOST_BYTES = 4 << 20
# Maximum seconds to write what is left at the end.
LAST_SECONDS = 1.0


class Outlet:
    """Writes to the stream behind a standard descriptor, in a thread of its own.

    Args:
        standard: The descriptor, 1 or 2.
        dropped_line: The line that replaces dropped ones, as a format string of their number.

    Attributes:
        fd: A duplicate of the descriptor, which stays the stream itself.
        dropped: Lines dropped since the start; shared with API server processes, which receive it with their arguments.
    """

    def __init__(self, standard: int, dropped_line: str) -> None:
        self.fd, self._standard, self._dropped_line = os.dup(standard), standard, dropped_line
        self.dropped = get_context("spawn").RawValue("Q", 0)
        self._waiting: deque[bytes] = deque()
        self._bytes = self._missing = 0
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        threading.Thread(target=self._write, daemon=True).start()

    def pump(self) -> None:
        """Have every process write to a pipe in place of the descriptor, which a thread reads without pause."""
        pipe, end = os.pipe()
        os.dup2(end, self._standard)
        os.close(end)
        self._reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reader.start()

    def put(self, data: bytes) -> None:
        """Write whole lines, or drop them if too much waits; never blocks."""
        with self._changed:
            if self._missing or (self._waiting and self._bytes + len(data) > MOST_BYTES):
                self._missing += data.count(b"\n")
                self.dropped.value += data.count(b"\n")
                return
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def close(self) -> None:
        """Restore the descriptor after writing the rest; discard what its reader does not read in time."""
        os.dup2(self.fd, self._standard)
        if self._reader is not None:
            self._reader.join(LAST_SECONDS)
        with self._changed:
            if not self._changed.wait_for(lambda: not self._waiting and not self._missing, LAST_SECONDS):
                discard(self._standard)

    def _read(self, pipe: int) -> None:
        rest = bytearray()
        while chunk := os.read(pipe, 1 << 16):
            # A progress bar rewrites its line.
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
            rest += chunk[:end]
            if end:
                self.put(bytes(rest))
                rest.clear()
            rest += chunk[end:]
        self.put(bytes(rest))
        os.close(pipe)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._missing)
                if not self._waiting:
                    self._waiting.append(self._dropped_line.format(self._missing).encode())
                    self._bytes, self._missing = len(self._waiting[0]), 0
                data = self._waiting[0]
            # A closed terminal or pipe, which nobody reads any more, must not stop the server.
            with suppress(OSError):
                while data:
                    data = data[os.write(self.fd, data) :]
            with self._changed:
                self.dropped.value += data.count(b"\n")
                self._bytes -= len(self._waiting.popleft())
                self._changed.notify_all()


def discard(fd: int) -> None:
    """Discard everything written to a descriptor from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)
