"""Limits the requests in flight of each API key, in one API server process."""

from collections import Counter

from ropeswitch.server.front.refusal import Refusal, too_many_at_once

# Stands for all clients together if no key is required.
EVERYONE = b"everyone"


class KeyLimits:
    """The requests in flight of each key; used only on the event loop.

    Args:
        concurrency: Maximum requests in flight per key.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._in_flight: Counter[bytes] = Counter()

    def take(self, key: bytes) -> Refusal | None:
        """Count a request as in flight, or return its refusal; every counted request must be given back.

        Args:
            key: The digest of an API key, or :data:`EVERYONE`.
        """
        if self._in_flight[key] >= self._concurrency:
            return too_many_at_once(self._concurrency)
        self._in_flight[key] += 1
        return None

    def give_back(self, key: bytes) -> None:
        """Count a request as ended: answered, or its client has disconnected."""
        self._in_flight[key] -= 1
        if not self._in_flight[key]:
            del self._in_flight[key]

    def in_flight(self, key: bytes) -> int:
        """Return the number of a key's requests in flight."""
        return self._in_flight[key]
