"""Holds the standard error of the server and its processes in a file.

vLLM, transformers and torch log there through Python, C++ libraries write there directly, and child processes inherit it. So
the file captures everything in order, and nothing has to be patched. Standard output has the access log.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress

from ropeswitch.server.start.log.outlet import discard

# Variables that configure vLLM's logging. If a user sets one, it applies, and nothing is held.
CHOSEN = ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH", "VLLM_CONFIGURE_LOGGING")
_STDERR = 2
# Size at which a running server's log is emptied; the lines that a user must see have already been printed.
MOST_BYTES = 16 << 20


def chosen(environment: Mapping[str, str]) -> bool:
    """Whether a user has configured vLLM's logging by environment variables."""
    return any(environment.get(name) for name in CHOSEN)


class HeldLog:
    """Holds standard error, in the file ``path``, from construction until its descriptor is replaced again."""

    def __init__(self) -> None:
        self._read, self.path = tempfile.mkstemp(prefix="ropeswitch-", suffix=".log")
        self._offset = 0
        sys.stderr.flush()
        # Append mode, so that many processes can write, and the file can be truncated while they do.
        write = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.dup2(write, _STDERR)
        os.close(write)
        # vLLM logs to standard output by default.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")

    def read(self, *, whole: bool = False) -> bytes:
        """Return the bytes written since the last call, or the whole file."""
        data = b""
        if whole:
            self._offset = 0
        while chunk := os.pread(self._read, 1 << 20, self._offset):
            data += chunk
            self._offset += len(chunk)
        return data

    def cut(self) -> None:
        """Empty a file that has grown beyond :data:`MOST_BYTES`, unless it has unread bytes."""
        # By descriptor: a cleanup of temporary files may have removed the name.
        if self._offset > MOST_BYTES and os.fstat(self._read).st_size == self._offset:
            os.ftruncate(self._read, 0)
            self._offset = 0

    def close(self, *, keep: bool) -> None:
        """Close the file, to which child processes may still write; delete it unless it is to be kept."""
        os.close(self._read)
        if not keep:
            with suppress(FileNotFoundError):
                os.unlink(self.path)


def silence_exit() -> None:
    """Discard standard error from now on, because Triton's nanobind lists hundreds of objects there at exit."""
    sys.stderr.flush()
    discard(_STDERR)
