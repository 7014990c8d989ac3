"""Means of measurements, with standard errors and confidence intervals."""

import math
from collections.abc import Sequence

from ropeswitch.factors.factor_set import FactorError

MOST_NATS = 700.0
Z = 1.959963984540054
"""Standard deviations that cover the middle 95% of a normal distribution."""


def wilson(hits: float, tries: int) -> tuple[float, float]:
    """Return the 95% interval of a proportion (Wilson 1927), which stays within 0 to 1 and never has width 0."""
    share, z2 = hits / tries, Z * Z
    middle = (share + z2 / (2 * tries)) / (1 + z2 / tries)
    half = Z / (1 + z2 / tries) * math.sqrt(share * (1 - share) / tries + z2 / (4 * tries * tries))
    return max(0.0, middle - half), min(1.0, middle + half)


def perplexity(sums: Sequence[tuple[float, int]]) -> tuple[float, float | None]:
    """Return the perplexity of all tokens, and its standard error over documents (None for one): (nats, tokens) of each.

    The perplexity is exp of the mean loss, and its error that value times the standard error of the mean loss. The mean is
    a ratio of sums over documents, because documents are drawn independently and the tokens of one are not. Raises
    FactorError when exp of the mean exceeds the range of a float.
    """
    tokens = sum(count for _, count in sums)
    mean = math.fsum(nll for nll, _ in sums) / tokens
    if mean > MOST_NATS:
        raise FactorError(f"perplexity: the mean loss of {mean:g} nats is too large for a finite perplexity")
    value, documents = math.exp(mean), len(sums)
    if documents < 2:
        return value, None
    squares = math.fsum((nll - mean * count) ** 2 for nll, count in sums)
    return value, value * math.sqrt(squares * documents / (documents - 1)) / tokens
