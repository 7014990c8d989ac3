"""How much one API key may ask for: requests at once, and requests a minute.

The rate is a token bucket: a key that was idle may make a minute's requests at once, and after that one for every
sixtieth part that has filled up again. In any t seconds it makes at most ``limit * (1 + t / 60)`` requests.
"""

import math
import time
from collections.abc import Callable

from ropeswitch.server.front.refusal import Refusal, too_many_a_minute, too_many_at_once
from ropeswitch.server.front.shared_counts import KEYS, SharedCounts

# Where no key is needed, everyone together is one.
EVERYONE = b"everyone"
_MINUTE = 60.0


class KeyLimits:
    """The limits of every key, kept in counts that all API server processes share.

    Args:
        counts: The shared counts.
        concurrency: Requests that a key may have in hand, None for any number.
        per_minute: Requests that a key may make in a minute, None for any number.
        clock: Seconds that only grow and are the same in every process.
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
        """Count a request of a key as in hand, unless it is refused; every one that is not must be given back.

        Args:
            key: What tells keys apart: the digest of one, or :data:`EVERYONE`.

        Raises:
            RuntimeError: when more than :data:`~ropeswitch.server.front.shared_counts.KEYS` keys have requests in hand.
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
        """A request that was taken is answered, or its client is gone."""
        with self._counts.locked():
            self._counts.whole[self._find(key, self._clock()) + 1] -= 1

    def in_hand(self, key: bytes) -> int:
        """How many requests of a key are in hand, in all processes."""
        with self._counts.locked():
            return self._counts.whole[self._find(key, self._clock()) + 1]

    def _filled(self, at: int, now: float) -> float:
        """The requests that a key may make now; as a real number, of which whole ones count."""
        if self._per_minute is None:
            return math.inf
        real = self._counts.real
        return min(self._per_minute, real[at + 2] + (now - real[at + 3]) * self._per_minute / _MINUTE)

    def _find(self, key: bytes, now: float) -> int:
        """Where the words of a key are; a new key gets those of one that has nothing in hand and its whole rate."""
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
            # Words are given to another key but never emptied, so that the keys behind them are still found.
            if free is None and whole[at + 1] == 0 and self._idle(at, now):
                free = at
        if free is None:
            raise RuntimeError(f"more than {KEYS} API keys have requests in hand")
        whole[free], whole[free + 1] = number, 0
        real[free + 2], real[free + 3] = float(self._per_minute or 0), now
        return free

    def _idle(self, at: int, now: float) -> bool:
        return self._per_minute is None or self._filled(at, now) >= self._per_minute
