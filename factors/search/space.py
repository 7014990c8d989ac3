"""The search space: which factors and start tokens a candidate may have.

Factors are counted in hundredths, the paper's step, as whole numbers; so nothing drifts, and equal candidates are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# LongRoPE, arXiv:2402.13753, table 4: the values of n-hat.
START_TOKENS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)
# Of a factor of 1; the step of the space is one hundredth.
ONE = 100


@dataclass(frozen=True)
class Candidate:
    """A point of the space.

    Attributes:
        hundredths: 100 times each factor, or each multiple of a base set's factor, from the fastest frequency on.
        start_tokens: Positions below it keep the unscaled angles.
    """

    hundredths: tuple[int, ...]
    start_tokens: int = 0

    def factors(self, base: Sequence[float] | None = None) -> tuple[float, ...]:
        """The rescale factors: the candidate's own, or so many times those of ``base``."""
        if base is None:
            return tuple(number / ONE for number in self.hundredths)
        return tuple(number * factor / ONE for number, factor in zip(self.hundredths, base, strict=True))


@dataclass(frozen=True)
class Space:
    """Every candidate with factors from 1 to ``upper / 100``, in steps of 0.01.

    Attributes:
        pairs: Factors of a candidate.
        upper: The largest allowed factor, in hundredths.
        monotone: Whether factors may not fall from one frequency to the next.
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
        """The candidate nearest to given factors, without start tokens; where they fall, each takes the largest before."""
        numbers = np.clip(np.rint(np.asarray(factors) * ONE).astype(np.int64), ONE, self.upper)
        if self.monotone:
            numbers = np.maximum.accumulate(numbers)
        return Candidate(tuple(numbers.tolist()))

    def draw(self, rng: np.random.Generator) -> Candidate:
        """A candidate drawn uniformly; where factors may not fall, the draws are sorted."""
        return Candidate(self.between(rng, self.pairs, ONE, self.upper), self.draw_start(rng))

    def between(self, rng: np.random.Generator, count: int, low: int, high: int) -> tuple[int, ...]:
        """So many hundredths in a row, drawn uniformly from ``low`` to ``high``."""
        numbers = rng.integers(low, high, size=count, endpoint=True)
        return tuple((np.sort(numbers) if self.monotone else numbers).tolist())

    def draw_start(self, rng: np.random.Generator) -> int:
        return START_TOKENS[int(rng.integers(len(START_TOKENS)))]
