"""Limits the requests in flight and the requests per minute of each API key.

The rate is a token bucket that holds one minute's requests: a key that was idle may make them all at once, and then one
more whenever the bucket has refilled by one. In any t seconds it makes at most ``limit * (1 + t / 60)`` requests.
"""

import math
import time
from collections.abc import Callable

from ropeswitch.server.front.refusal import Refusal, too_many_a_minute, too_many_at_once
from ropeswitch.server.front.shared_counts import KEYS, SharedCounts

# Stands for all clients together if no key is required.
EVERYONE = b"everyone"
_MINUTE = 60.0


class KeyLimits:
    """Enforces the limits, in counts that all API server processes share.

    Args:
        counts: The shared counts.
        concurrency: Maximum requests in flight per key; None for no limit.
        per_minute: Maximum requests per minute per key; None for no limit.
        clock: Monotonic seconds, the same in every process.
    """

    def __init__(
        self,
        counts: SharedCounts,
        concurrency: int | None,
        per_minute: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counts
        self._concurrency = concurrency
        self._per_minute = per_minute
        self._clock = clock

    def take(self, key: bytes) -> Refusal | None:
        """Count a request as in flight, or return its refusal; every counted request must be given back.

        Args:
            key: The digest of an API key, or :data:`EVERYONE`.

        Raises:
            RuntimeError: when more than :data:`~ropeswitch.server.front.shared_counts.KEYS` keys have requests in flight.
        """
        now = self._clock()
        whole, real = self._counts.whole, self._counts.real
        with self._counts.locked():
            at = self._find(key, now)
            if self._concurrency is not None and whole[at + 1] >= self._concurrency:
                return too_many_at_once(self._concurrency)
            if self._per_minute is not None:
                filled = self._filled(at, now)
                real[at + 2], real[at + 3] = filled, now
                if filled < 1:
                    seconds = (1 - filled) * _MINUTE / self._per_minute
                    return too_many_a_minute(self._per_minute, max(1, math.ceil(seconds)))
                real[at + 2] = filled - 1
            whole[at + 1] += 1
        return None

    def give_back(self, key: bytes) -> None:
        """Count a request as ended: answered, or its client has disconnected."""
        with self._counts.locked():
            self._counts.whole[self._find(key, self._clock()) + 1] -= 1

    def in_flight(self, key: bytes) -> int:
        """Return the number of a key's requests in flight, in all processes."""
        with self._counts.locked():
            return self._counts.whole[self._find(key, self._clock()) + 1]

    def _filled(self, at: int, now: float) -> float:
        """Return the level of a key's token bucket; each whole unit is one request."""
        if self._per_minute is None:
            return math.inf
        real = self._counts.real
        return min(self._per_minute, real[at + 2] + (now - real[at + 3]) * self._per_minute / _MINUTE)

    def _find(self, key: bytes, now: float) -> int:
        """Return the index of a key's words; a new key takes over those of one with nothing in flight and a full bucket."""
        number = int.from_bytes(key[:8], "little", signed=True) or 1
        whole, real = self._counts.whole, self._counts.real
        free = None
        for step in range(KEYS):
            at = self._counts.of_key((number + step) % KEYS)
            if whole[at] == number:
                return at
            if whole[at] == 0:
                free = at if free is None else free
                break
            # Words pass to another key but are never emptied, so that probing still finds the keys after them.
            if free is None and whole[at + 1] == 0 and self._idle(at, now):
                free = at
        if free is None:
            raise RuntimeError(f"more than {KEYS} API keys have requests in flight")
        whole[free], whole[free + 1] = number, 0
        real[free + 2], real[free + 3] = float(self._per_minute or 0), now
        return free

    def _idle(self, at: int, now: float) -> bool:
        return self._per_minute is None or self._filled(at, now) >= self._per_minute
