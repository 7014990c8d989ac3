"""Means of measurements, with standard errors and confidence intervals."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

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


T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Half-width of a 95% interval in standard errors (Student's t), for 1, 2, ... degrees of freedom."""


def t_quantile(freedom: int) -> float:
    """Return the half-width of a 95% interval in standard errors.

    Beyond :data:`T`, it is the first terms of the expansion in 1 / freedom (Abramowitz and Stegun, 26.7.5).
    """
    if freedom <= len(T):
        return T[freedom - 1]
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of two perplexities on the same documents, and its 95% interval from their differences.

    Takes each document's mean loss in nats. Raises ValueError if the losses are not pairs, or fewer than two.
    """
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(f"{len(ours)} and {len(theirs)} documents: give both the same ones, at least two")
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    mean = fmean(differences)
    error = t_quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return math.exp(mean), math.exp(mean - error), math.exp(mean + error)
