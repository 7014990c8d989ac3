"""Counts that all API server processes of one server share, so that a limit is one of the server, not of a process.

They are in a file that every process maps into its memory; ``flock`` makes a change of several of them one. Its lock is
let go by the kernel when a process dies in the middle. vLLM ends the whole server with any of its processes, so what a dead
one had counted is not kept.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Length classes, and keys with something in hand: twice as many as there may be keys, for keys that are taken away.
CLASSES = 4096
KEYS = 8192
_WORD = 8
_CLASS_WORDS = 2
_KEY_WORDS = 4
_KEYS_START = CLASSES * _CLASS_WORDS
_SIZE = (_KEYS_START + KEYS * _KEY_WORDS) * _WORD


class SharedCounts:
    """The shared counts, opened.

    Attributes:
        whole: The words of the file as integers.
        real: The same words as floats.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "r+b")  # noqa: SIM115 - it stays open as long as the process lives
        self._map = mmap.mmap(self._file.fileno(), _SIZE)
        view = memoryview(self._map)
        self.whole = view.cast("q")
        self.real = view.cast("d")

    @staticmethod
    def create(path: Path) -> str:
        """Make the file, readable by its owner alone, with every count zero; returns its path."""
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as file:
            file.truncate(_SIZE)
        return str(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes a count meanwhile. Not to be nested, nor held while anything is awaited."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @staticmethod
    def of_class(index: int) -> int:
        """Where the two words of a length class begin: its waiting requests and their tokens.

        Raises:
            IndexError: beyond :data:`CLASSES` classes.
        """
        if not 0 <= index < CLASSES:
            raise IndexError(f"length class {index} must be from 0 to {CLASSES - 1}")
        return index * _CLASS_WORDS

    @staticmethod
    def of_key(slot: int) -> int:
        """Where the four words of a key begin: its number, its requests in hand, its tokens and when they were counted."""
        return _KEYS_START + slot * _KEY_WORDS
