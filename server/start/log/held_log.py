"""Holds the standard error of the server and its processes in a file.

vLLM, transformers and torch log there through Python, C++ libraries write there directly, and child processes inherit it. So
the file captures everything in order, and nothing has to be patched. Standard output, which has the access log, stays
unchanged.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress

# vLLM logs to standard output by default.
STREAM = "VLLM_LOGGING_STREAM"
# Variables that configure vLLM's logging. If a user sets one, it applies, and nothing is held.
CHOSEN = ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH", "VLLM_CONFIGURE_LOGGING", STREAM)
_STDERR = 2
# Size at which a running server's log is emptied; the lines that a user must see have already been printed.
MOST_BYTES = 16 << 20
# Minimum free bytes of the file's file system; on a full one, lines would be lost.
LEAST_ROOM = 4 << 20
_READ_BYTES = 1 << 20


def chosen(environment: Mapping[str, str]) -> bool:
    """Whether a user has configured vLLM's logging by environment variables."""
    return any(environment.get(name) for name in CHOSEN)


def without_room() -> str | None:
    """Return the folder of temporary files if it has too little room for a log, else None."""
    folder = tempfile.gettempdir()
    return folder if _free(os.statvfs(folder)) < LEAST_ROOM else None


class HeldLog:
    """Holds standard error from construction until :meth:`release`.

    Attributes:
        path: The file.
        terminal: File descriptor of the standard error that the command was started with.
    """

    def __init__(self) -> None:
        self._read, self.path = tempfile.mkstemp(prefix="ropeswitch-", suffix=".log")
        self._offset = 0
        _flush()
        self.terminal = os.dup(_STDERR)
        # Append mode, so that many processes can write, and the file can be truncated while they do.
        write = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.dup2(write, _STDERR)
        os.close(write)
        os.environ[STREAM] = "ext://sys.stderr"

    def rewind(self) -> None:
        """Make the next :meth:`read` return the file from its beginning."""
        self._offset = 0

    def read(self) -> bytes:
        """Return the bytes written since the last call."""
        data = b""
        while chunk := os.pread(self._read, _READ_BYTES, self._offset):
            data += chunk
            self._offset += len(chunk)
        return data

    def cut(self) -> None:
        """Empty a file that has grown beyond :data:`MOST_BYTES` or lacks room, unless it has unread bytes."""
        if self._offset <= MOST_BYTES and self.has_room():
            return
        # By descriptor: a cleanup of temporary files may have removed the name.
        if os.fstat(self._read).st_size == self._offset:
            os.ftruncate(self._read, 0)
            self._offset = 0

    def has_room(self) -> bool:
        """Whether the file can still grow by :data:`LEAST_ROOM` bytes."""
        return _free(os.fstatvfs(self._read)) >= LEAST_ROOM

    def release(self) -> None:
        """Restore standard error; child processes that still run keep writing to the file."""
        _flush()
        os.dup2(self.terminal, _STDERR)
        os.environ.pop(STREAM, None)

    def close(self, *, keep: bool) -> None:
        """Close the file, after :meth:`release`; delete it unless it is to be kept."""
        os.close(self._read)
        os.close(self.terminal)
        if not keep:
            with suppress(FileNotFoundError):
                os.unlink(self.path)


def open_standard_error() -> None:
    """Discard standard error if the command was started without one.

    Otherwise the next file or socket to be opened would take its descriptor and receive the log.
    """
    try:
        os.fstat(_STDERR)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != _STDERR:
            os.dup2(null, _STDERR)
            os.close(null)
        os.set_inheritable(_STDERR, True)
        sys.stderr = os.fdopen(_STDERR, "w", closefd=False)


def silence_exit() -> None:
    """Discard standard error from now on, because Triton's nanobind lists hundreds of objects there at exit."""
    _flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDERR)
    os.close(null)


def _free(file_system: os.statvfs_result) -> int:
    if file_system.f_blocks == 0:  # no limit, such as a tmpfs of size 0
        return LEAST_ROOM
    return file_system.f_bavail * file_system.f_frsize


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
