"""The keys to a server's API and metrics: from flags, the environment and files that are read again when they change.

Only digests are kept, so that no key is in the arguments, the memory of another process or a log.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ropeswitch.server.errors import UsageError
from ropeswitch.server.front.files import WatchedFiles

# Of all keys together: the table of what each key has in hand has room for twice as many.
MOST_KEYS = 4096
# Seconds between two looks at the file.
LOOK_SECONDS = 1.0
# Far more than that many keys need; a wrong path must not fill the memory.
_MOST_BYTES = 1 << 20


def digest(key: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key).digest()


def bearer(header: bytes) -> bytes | None:
    """The token of an ``Authorization: Bearer`` header's value, None where it is of another kind or empty."""
    scheme, _, token = header.strip().partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None


def check_key(source: str, key: str) -> bytes:
    """The digest of a key that fits into a header.

    Args:
        source: Where it was given, for the message, which never shows the key.

    Raises:
        UsageError: for an empty key, or one that a client could not send.
    """
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{source}: a key must be one or more printable ASCII characters without spaces")
    return digest(key.encode())


def read_keys(path: str, source: str = "--api-key-file") -> tuple[bytes, ...]:
    """The digests of the keys in a file: one a line, without the space around it; empty lines and ``#`` lines are skipped.

    Args:
        source: The flag that named the file, for the message.

    Raises:
        UsageError: when the file cannot be read, holds no key, too many or one that no client can send.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{source}: {path!r} has more than {_MOST_BYTES} bytes, which no list of keys needs")
        lines = [line.strip() for line in content.decode().splitlines()]
    except OSError as error:
        raise UsageError(f"{source}: {path!r} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: {path!r} must be a text file with one key a line") from error
    keys = [
        check_key(f"{source}: {path!r} line {number}", line)
        for number, line in enumerate(lines, start=1)
        if line and not line.startswith("#")
    ]
    if not 1 <= len(keys) <= MOST_KEYS:
        raise UsageError(f"{source}: {path!r} has {len(keys)} keys; from 1 to {MOST_KEYS} are allowed")
    return tuple(keys)


class KeyRing:
    """The keys in force in one process.

    Args:
        fixed: Digests of the keys that do not change.
        path: The file with more of them, which was read once without fault, or None.
        source: The flag that named the file, for messages.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        fixed: Sequence[bytes],
        path: str | None,
        source: str = "--api-key-file",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = tuple(fixed)
        self._path = path
        self._source = source
        self._clock = clock
        self._looked = float("-inf")
        self._from_file: tuple[bytes, ...] = ()
        self._file: WatchedFiles | None = None
        if path is not None:
            self._file = WatchedFiles([path], self._read)
            self._read()

    @property
    def needed(self) -> bool:
        """Whether requests need a key at all."""
        return bool(self._fixed) or self._path is not None

    def match(self, token: bytes) -> bytes | None:
        """The digest of the key that a token is, None where it is none of them; in the same time for all tokens."""
        self._look()
        return match(digest(token), (*self._fixed, *self._from_file))

    def _look(self) -> None:
        now = self._clock()
        if self._file is not None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._file.look()

    def _read(self) -> None:
        assert self._path is not None
        self._from_file = read_keys(self._path, self._source)


def match(wanted: bytes, digests: Iterable[bytes]) -> bytes | None:
    """The one of ``digests`` that is ``wanted``; all are compared, so that the time does not tell which it is."""
    found = None
    for each in digests:
        if hmac.compare_digest(each, wanted):
            found = each
    return found
