"""Ratios of perplexities on the same documents, with 95% intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Half-width of a 95% interval in standard errors (Student's t), for 1, 2, ... degrees of freedom."""
Z = 1.960


def t_quantile(freedom: int) -> float:
    """Return the half-width of a 95% interval in standard errors.

    Beyond :data:`T`, it is the first terms of the expansion in 1 / freedom (Abramowitz and Stegun, 26.7.5).
    """
    if freedom <= len(T):
        return T[freedom - 1]
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)


@dataclass(frozen=True)
class Ratio:
    """The ratio of two perplexities on the same documents.

    Attributes:
        value: The ratio, from the mean difference of losses.
        low: Lower end of its 95% interval, from the documents' differences.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        """Compute the ratio from paired losses in nats, of at least two documents.

        Raises:
            ValueError: if the losses are not pairs, or fewer than two.
        """
        if len(ours) != len(theirs) or len(ours) < 2:
            raise ValueError(
                f"{len(ours)} and {len(theirs)} documents: give both sets the same documents, at least two"
            )
        differences = [one - other for one, other in zip(ours, theirs, strict=True)]
        mean = fmean(differences)
        error = t_quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
        return cls(*(math.exp(each) for each in (mean, mean - error, mean + error)))
