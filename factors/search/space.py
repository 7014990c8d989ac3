"""The search space: the factors and start tokens that a candidate may have.

Factors are stored as whole hundredths, the paper's step, so that nothing drifts and equal candidates compare equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# LongRoPE, arXiv:2402.13753, table 4: the values of n-hat.
START_TOKENS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)
# Hundredths of a factor of 1.
ONE = 100


@dataclass(frozen=True)
class Candidate:
    """A point of the space.

    Attributes:
        hundredths: 100 times each factor, or each multiple of a base set's factor, fastest frequency first.
        start_tokens: Positions below it keep the unscaled angles.
    """

    hundredths: tuple[int, ...]
    start_tokens: int = 0

    def factors(self, base: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return the rescale factors: the candidate's own, or its multiples of ``base``."""
        if base is None:
            return tuple(number / ONE for number in self.hundredths)
        return tuple(number * factor / ONE for number, factor in zip(self.hundredths, base, strict=True))


@dataclass(frozen=True)
class Space:
    """All candidates with factors from 1 to ``upper / 100``, in steps of 0.01.

    Attributes:
        pairs: Number of factors per candidate.
        upper: Largest allowed factor, in hundredths.
        monotone: Whether factors must not decrease from one frequency to the next.
    """

    pairs: int
    upper: int
    monotone: bool = True

    def __contains__(self, candidate: Candidate) -> bool:
        numbers = candidate.hundredths
        return (
            len(numbers) == self.pairs
            and all(ONE <= number <= self.upper for number in numbers)
            and (not self.monotone or list(numbers) == sorted(numbers))
            and candidate.start_tokens in START_TOKENS
        )

    def nearest(self, factors: Sequence[float]) -> Candidate:
        """Return the candidate nearest to given factors, without start tokens; if monotone, raise falling factors."""
        numbers = np.clip(np.rint(np.asarray(factors) * ONE).astype(np.int64), ONE, self.upper)
        if self.monotone:
            numbers = np.maximum.accumulate(numbers)
        return Candidate(tuple(numbers.tolist()))

    def draw(self, rng: np.random.Generator) -> Candidate:
        """Draw a candidate uniformly; if monotone, the draws are sorted."""
        return Candidate(self.between(rng, self.pairs, ONE, self.upper), self.draw_start(rng))

    def between(self, rng: np.random.Generator, count: int, low: int, high: int) -> tuple[int, ...]:
        """Draw ``count`` hundredths uniformly from ``low`` to ``high``, sorted if monotone."""
        numbers = rng.integers(low, high, size=count, endpoint=True)
        return tuple((np.sort(numbers) if self.monotone else numbers).tolist())

    def draw_start(self, rng: np.random.Generator) -> int:
        return START_TOKENS[int(rng.integers(len(START_TOKENS)))]
