"""Reading the figures of ``results.json``: what there is of them, and how two servers' compare."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from ropeswitch.loadtests.client.bands import band
from ropeswitch.loadtests.client.records import Side

Figures = Mapping[str, Any]
SIDES: tuple[Side, ...] = ("target", "baseline")


def sides(point: Figures) -> list[tuple[Side, Figures]]:
    """The figures of the servers that a point has runs of, the target's first."""
    return [(side, point[side]) for side in SIDES if point[side] is not None]


def usable(value: float | None) -> float | None:
    """A figure; None where upstream's benchmark writes 0 or NaN because no request had one."""
    return value if value is not None and isfinite(value) and value > 0 else None


def band_names(point: Figures) -> list[str]:
    """The bands that any request of the point is in, from short to long."""
    return sorted({name for _, figures in sides(point) for name in figures["bands"]}, key=band)


def ratio(key: str, target: Figures, baseline: Figures) -> float | None:
    """The target's figure over the baseline's; None where one has none."""
    above, below = usable(target.get(key)), usable(baseline.get(key))
    return None if above is None or below is None else above / below
