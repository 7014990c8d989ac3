"""Reads the figures of ``results.json`` and compares two servers'."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from ropeswitch.loadtests.client.bands import band
from ropeswitch.loadtests.client.records import Side

Figures = Mapping[str, Any]
SIDES: tuple[Side, ...] = ("target", "baseline")


def sides(point: Figures) -> list[tuple[Side, Figures]]:
    """Return the figures of each server with runs at a point, the target's first."""
    return [(side, point[side]) for side in SIDES if point[side] is not None]


def usable(value: float | None) -> float | None:
    """Return a figure; None if upstream's benchmark wrote 0 or NaN because no request had one."""
    return value if value is not None and isfinite(value) and value > 0 else None


def band_names(point: Figures) -> list[str]:
    """Return the bands with requests at the point, from short to long."""
    return sorted({name for _, figures in sides(point) for name in figures["bands"]}, key=band)


def ratio(key: str, target: Figures, baseline: Figures) -> float | None:
    """Return the target's figure over the baseline's; None if either is missing."""
    above, below = usable(target.get(key)), usable(baseline.get(key))
    return None if above is None or below is None else above / below
