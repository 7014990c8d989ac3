"""Clients: API keys and metrics keys, from flags, the environment and files that are reloaded, and each client's shares.

Only digests are kept, so that no key appears in arguments, in another process or in a log.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from ropeswitch.factors.errors import UsageError

logger = logging.getLogger(__name__)

# Maximum number of API keys; every request is compared with all of them.
MOST_KEYS = 4096
# Seconds between two readings of a file: 4,096 keys take 5 ms.
LOOK_SECONDS = 1.0
# Requests, and prompts of requests, that one client may begin in a turn of the event loop; each takes about 5 ms.
AT_ONCE = 8
# Far more bytes than that many keys need; bounds the memory that a wrong path can take.
_MOST_BYTES = 1 << 20


def digest(key: bytes) -> bytes:
    """Return the SHA-256 digest of a key."""
    return hashlib.sha256(key).digest()


def key_id(key_digest: bytes) -> str:
    """Return a key's ID, which logs show in its place: the first 8 hex digits of its digest."""
    return key_digest.hex()[:8]


def bearer(header: bytes) -> bytes | None:
    """Return the token in an ``Authorization: Bearer`` header's value; None for another scheme or an empty token."""
    scheme, _, token = header.strip().partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None


def check_key(source: str, key: str) -> bytes:
    """Return the digest of a key; UsageError, without the key, for one that is empty or does not fit into a header."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{source}: a key must be one or more printable ASCII characters without spaces")
    return digest(key.encode())


def read_keys(path: str, flag: str = "--api-key-file") -> frozenset[bytes]:
    """Return the digests of the keys in a file: one key per line, stripped. Empty lines and ``#`` lines are skipped.

    Raises:
        UsageError: when the file cannot be read, or holds no key, too many, or one that does not fit into a header.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{flag}: {path!r} has more than {_MOST_BYTES} bytes, too large for a list of keys")
        lines = [line.strip() for line in content.decode().splitlines()]
    except OSError as error:
        raise UsageError(f"{flag}: {path!r} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag}: {path!r} must be a text file with one key per line") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line and not line.startswith("#")]
    keys = frozenset(check_key(f"{flag}: {path!r} line {number}", line) for number, line in numbered)
    if not 1 <= len(numbered) <= MOST_KEYS:
        raise UsageError(f"{flag}: {path!r} has {len(numbered)} keys; from 1 to {MOST_KEYS} are allowed")
    return keys


class KeyRing:
    """The keys in force in one process; used only on the event loop.

    Args:
        fixed: Digests of the keys from flags and the environment.
        path: The file with more keys, or None.
        flag: The flag that named the file.

    Raises:
        UsageError: for a faulty file.
    """

    def __init__(self, fixed: Sequence[bytes], path: str | None, flag: str = "--api-key-file") -> None:
        self._fixed, self._path, self._flag = tuple(fixed), path, flag
        self._from_file = frozenset() if path is None else read_keys(path, flag)
        self._read_at = time.monotonic()
        # The last fault, which is logged once.
        self._fault: str | None = None

    @property
    def needed(self) -> bool:
        """Whether requests need a key at all."""
        return bool(self._fixed) or self._path is not None

    def may_be_shared(self) -> bool:
        """Whether requests may be of several clients: unless exactly one key is in force."""
        return len({*self._fixed, *self._from_file}) != 1

    def match(self, token: bytes) -> bytes | None:
        """Return the digest of the key that equals ``token``, or None; compares all keys, so that the time reveals nothing.

        The file is read again first; if it has a fault, the previous keys stay in force.
        """
        now = time.monotonic()
        if self._path is not None and now - self._read_at >= LOOK_SECONDS:
            self._read_at = now
            try:
                self._from_file, self._fault = read_keys(self._path, self._flag), None
            except UsageError as error:
                if str(error) != self._fault:
                    logger.error("%s; the previous content stays in force", error)
                self._fault = str(error)
        wanted = digest(token)
        found = [each for each in (*self._fixed, *self._from_file) if hmac.compare_digest(each, wanted)]
        return found[0] if found else None


def client_at(address: str | None) -> bytes:
    """Return the digest of a client's address; of its /64 network for IPv6, as one machine may use all of that."""
    try:
        found = ip_address(address or "")
    except ValueError:  # a Unix socket, or what a proxy wrote
        return digest((address or "local").encode())
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64)
    return digest(str(found).encode())


class Turns:
    """Lets a few tasks of each client through in each turn of the event loop, so that a client's many hold nobody up."""

    def __init__(self) -> None:
        self._passed: Counter[bytes] = Counter()  # in this turn

    async def wait(self, client: bytes) -> None:
        """Wait until fewer than :data:`AT_ONCE` of the client's tasks have passed in a turn."""
        while self._passed[client] >= AT_ONCE:
            await asyncio.sleep(0)
        if not self._passed.total():
            asyncio.get_running_loop().call_soon(self._passed.clear)
        self._passed[client] += 1


class Shares:
    """Amounts that clients hold at once, in one API server process; used only on its event loop.

    Without ``weight``, each client may hold ``limit``. With it, ``limit`` is for all of them, and each may hold ``weight``
    times what is then still free: alone ``weight / (weight + 1)`` of the limit, so the next client finds room (the dynamic
    threshold of Choudhury and Hahne, 1998). One that holds nothing may begin 1 while that is free. Messages name ``flag``.
    """

    def __init__(self, flag: str, limit: int, weight: int = 0) -> None:
        self.flag, self.limit, self.weight = flag, limit, weight
        self.held: Counter[bytes] = Counter()
        self.total = 0
        self.most = self.room(b"")  # maximum that one client can ever hold

    def room(self, client: bytes) -> int:
        """Return how much more a client may hold; below 0 if others took what was free since."""
        held = self.held[client]
        if not self.weight:
            return self.limit - held
        free = self.limit - self.total
        return max((self.weight * free - held) // (self.weight + 1), int(not held and free > 0))

    def add(self, client: bytes, amount: int) -> None:
        """Change what a client holds by an amount, whether or not there is room for it."""
        self.total += amount
        self.held[client] += amount
        if not self.held[client]:
            del self.held[client]
