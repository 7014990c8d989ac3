"""A standard stream whose stalled reader holds up no process of the server: its lines are dropped and counted instead."""

import os
import time
from multiprocessing import get_context
from queue import SimpleQueue
from threading import Thread

# Bytes that may wait for a reader before lines are dropped.
MOST_BYTES = 4 << 20
# Maximum seconds to write what is left at the end.
LAST_SECONDS = 1.0


class Outlet:
    """Writes to the stream behind a standard descriptor, in a thread of its own; only one thread at a time may put.

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
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        # Each has one thread that changes it: bytes put and written, and dropped lines that were reported.
        self._put = self._written = self._reported = 0
        self._reader: Thread | None = None
        Thread(target=self._write, daemon=True).start()

    def pump(self) -> None:
        """Put what every process writes to the descriptor."""
        self._reader = Thread(target=self._read, args=(piped(self._standard),), daemon=True)
        self._reader.start()

    def put(self, data: bytes) -> None:
        """Write whole lines, or drop them if too much waits, or others were dropped before them; never blocks."""
        waiting = self._put - self._written
        if waiting and (waiting > MOST_BYTES or self.dropped.value > self._reported):
            self.dropped.value += data.count(b"\n")
        else:
            self._put += len(data)
            self._queue.put(data)

    def close(self) -> None:
        """Restore the descriptor; discard what the stream's reader does not read in time."""
        os.dup2(self.fd, self._standard)
        if self._reader is not None:
            self._reader.join(LAST_SECONDS)
        until = time.monotonic() + LAST_SECONDS
        while self._put > self._written:
            if time.monotonic() > until:
                discard(self._standard)
                return
            time.sleep(0.01)

    def _read(self, pipe: int) -> None:
        with open(pipe, "rb") as lines:
            for line in lines:
                self.put(line)

    def _write(self) -> None:
        while True:
            data = self._queue.get()
            try:
                self._send(data)
                if self._put == self._written + len(data) and (missing := self.dropped.value - self._reported):
                    # First, as a line that is put meanwhile follows the report and is not dropped.
                    self._reported += missing
                    self._send(self._dropped_line.format(missing).encode())
            except OSError:
                # Nobody reads any more, which must not stop the server; what comes is soon dropped.
                return
            self._written += len(data)

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.fd, data) :]


def piped(standard: int) -> int:
    """Have every process write to a pipe in place of a standard descriptor; return its other end."""
    pipe, end = os.pipe()
    os.dup2(end, standard)
    os.close(end)
    return pipe


def discard(fd: int) -> None:
    """Discard everything written to a descriptor from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)
