"""Means of what was measured, with what they may be off by."""

import math
from collections.abc import Sequence

from ropeswitch.factors.factor_set import FactorError

MOST_NATS = 700.0
Z = 1.959963984540054
"""Of a normal distribution's middle 95%."""


def wilson(hits: float, tries: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927), which stays inside 0 to 1 and is none of width 0 at either end.

    Scores between 0 and 1 vary less than those of 0 and 1 with the same mean: for them it is rather too wide.
    """
    share, z2 = hits / tries, Z * Z
    middle = (share + z2 / (2 * tries)) / (1 + z2 / tries)
    half = Z / (1 + z2 / tries) * math.sqrt(share * (1 - share) / tries + z2 / (4 * tries * tries))
    return max(0.0, middle - half), min(1.0, middle + half)


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of values; None for a single one."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)


def perplexity(sums: Sequence[tuple[float, int]]) -> tuple[float, float | None]:
    """Perplexity of all tokens and its standard error over documents.

    Args:
        sums: For each document the sum of its losses in nats and how many tokens that is of.

    Returns:
        exp of the mean loss, and that times the standard error of the mean loss, a ratio of sums over documents: they are
        drawn independently, and tokens of one are not. None for a single document.

    Raises:
        FactorError: when the mean is so large that no float holds its exp.
    """
    tokens = sum(count for _, count in sums)
    mean = math.fsum(nll for nll, _ in sums) / tokens
    if mean > MOST_NATS:
        raise FactorError(f"perplexity: a mean loss of {mean:g} nats is too large for a perplexity")
    value = math.exp(mean)
    documents = len(sums)
    if documents < 2:
        return value, None
    squares = math.fsum((nll - mean * count) ** 2 for nll, count in sums)
    return value, value * math.sqrt(squares * documents / (documents - 1)) / tokens
