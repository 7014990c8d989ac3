"""Counts shared by all API server processes of one server, so that limits apply to the server, not to each process.

They are in a file that every process maps into memory; ``flock`` makes updates of several counts atomic, and the kernel
releases the lock of a process that dies. vLLM ends the whole server when one of its processes dies, so counts of a dead
process do not remain.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Maximum length classes, and maximum keys with requests in flight: twice the number of keys, for keys that were removed.
CLASSES = 4096
KEYS = 8192
_WORD = 8
_CLASS_WORDS = 2
_KEY_WORDS = 4
_KEYS_START = CLASSES * _CLASS_WORDS
_SIZE = (_KEYS_START + KEYS * _KEY_WORDS) * _WORD


class SharedCounts:
    """The opened file of shared counts.

    Attributes:
        whole: The words of the file as integers.
        real: The same words as floats.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "r+b")  # noqa: SIM115 - open for the life of the process
        self._map = mmap.mmap(self._file.fileno(), _SIZE)
        view = memoryview(self._map)
        self.whole = view.cast("q")
        self.real = view.cast("d")

    @staticmethod
    def create(path: Path) -> str:
        """Create the file, accessible only to its owner, with every count zero; return its path."""
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as file:
            file.truncate(_SIZE)
        return str(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the counts. Do not nest it, and do not await while holding it."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @staticmethod
    def of_class(index: int) -> int:
        """Return the index of the two words of a length class: its waiting requests and their tokens.

        Raises:
            IndexError: beyond :data:`CLASSES` classes.
        """
        if not 0 <= index < CLASSES:
            raise IndexError(f"length class {index} must be from 0 to {CLASSES - 1}")
        return index * _CLASS_WORDS

    @staticmethod
    def of_key(slot: int) -> int:
        """Return the index of a key's four words: its number, requests in flight, bucket level and that level's time."""
        return _KEYS_START + slot * _KEY_WORDS
