"""API keys and metrics keys: from flags, the environment and files that are reloaded when they change.

Only digests are kept, so that no key appears in arguments, in another process or in a log.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.front.limits.files import WatchedFiles

# Maximum number of API keys; every request is compared with all of them.
MOST_KEYS = 4096
# Seconds between two checks of the file.
LOOK_SECONDS = 1.0
# Far more bytes than that many keys need; bounds the memory that a wrong path can take.
_MOST_BYTES = 1 << 20


def digest(key: bytes) -> bytes:
    """Return the SHA-256 digest of a key."""
    return hashlib.sha256(key).digest()


def bearer(header: bytes) -> bytes | None:
    """Return the token in an ``Authorization: Bearer`` header's value; None for another scheme or an empty token."""
    scheme, _, token = header.strip().partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None


def check_key(source: str, key: str) -> bytes:
    """Check that a key fits into a header, and return its digest.

    Args:
        source: Its flag, variable or file, for the error message, which never shows the key.

    Raises:
        UsageError: for an empty key, or one that does not fit into a header.
    """
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{source}: a key must be one or more printable ASCII characters without spaces")
    return digest(key.encode())


def read_keys(path: str, source: str = "--api-key-file") -> tuple[bytes, ...]:
    """Return the digests of the keys in a file: one key per line, stripped; empty lines and ``#`` lines are skipped.

    Args:
        source: The flag that named the file, for the message.

    Raises:
        UsageError: when the file cannot be read, or holds no key, too many, or one that does not fit into a header.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{source}: {path!r} has more than {_MOST_BYTES} bytes, too large for a list of keys")
        lines = [line.strip() for line in content.decode().splitlines()]
    except OSError as error:
        raise UsageError(f"{source}: {path!r} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: {path!r} must be a text file with one key per line") from error
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
        fixed: Digests of the keys from flags and the environment.
        path: The file with more keys, already read once without error, or None.
        source: The flag that named the file, for messages.
        clock: Monotonic seconds.
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
        """Return the digest of the key that equals ``token``, or None; takes the same time for every token."""
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
    """Return the digest in ``digests`` that equals ``wanted``, or None; compares all, so that the time reveals nothing."""
    found = None
    for each in digests:
        if hmac.compare_digest(each, wanted):
            found = each
    return found
