"""Shares of one limit between clients, so that none of them keeps the others from the server."""

from collections import Counter
from ipaddress import IPv6Address, ip_address

from ropeswitch.server.front.limits.keys import digest


def client_at(address: str | None) -> bytes:
    """Return the digest of a client's address; of its /64 network for IPv6, as one machine may use all of that."""
    try:
        found = ip_address(address or "")
    except ValueError:  # a Unix socket, or what a proxy wrote
        return digest((address or "local").encode())
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64)
    return digest(str(found).encode())


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
