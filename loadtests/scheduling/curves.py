"""Latency of short requests against the long prompt's completion time: points, their best ones, and equal times."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# Completion times this close are the same: runs of one setting differ by as much.
SAME_TIME = 1.02


@dataclass(frozen=True)
class Point:
    """What one setting reached over its mixed runs.

    Attributes:
        runs: How many.
        shorts: How many short requests arrived while the long prompt prefilled, in all runs.
        long: Seconds to the long prompt's first token, the runs' median.
        p99: 99th percentile, by nearest rank, of the seconds to a short request's first token, all runs pooled.
        gap: Seconds, the runs' median of the worst gap between two tokens of the decoding request.
        throughput: Prompt and output tokens a second over a whole run, the runs' median.
    """

    setting: str
    ours: bool
    runs: int
    shorts: int
    long: float
    p99: float
    gap: float
    throughput: float


def nearest_rank(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of the values do not exceed.

    Raises:
        ValueError: when there are no values.
    """
    if not values:
        raise ValueError("values: at least one is needed; no short request arrived while the long prompt prefilled")
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def points(records: Iterable[dict[str, Any]]) -> list[Point]:
    """One point per setting, in the order in which the settings first appear; ``records`` are of one phase."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["setting"], []).append(record)
    return [_point(name, group) for name, group in groups.items()]


def _point(name: str, group: list[dict[str, Any]]) -> Point:
    results = [record["result"] for record in group]
    pooled = [seconds for result in results for seconds in result["ttfts"]]
    return Point(
        setting=name,
        ours=group[0]["ours"],
        runs=len(group),
        shorts=len(pooled),
        long=statistics.median(result["long"] for result in results),
        p99=nearest_rank(pooled, 99),
        gap=statistics.median(result["worst_gap"] for result in results),
        throughput=statistics.median(result["tokens"] / result["seconds"] for result in results),
    )


def undominated(found: Sequence[Point]) -> list[Point]:
    """The points that no other one equals or beats in completion time, p99 and worst gap at once."""

    def beats(a: Point, b: Point) -> bool:
        first, second = (a.long, a.p99, a.gap), (b.long, b.p99, b.gap)
        return first != second and all(x <= y for x, y in zip(first, second, strict=True))

    return [point for point in found if not any(beats(other, point) for other in found)]


def best(found: Sequence[Point], count: int = 3) -> list[Point]:
    """The undominated points with the lowest p99; where fewer than ``count`` are undominated, others fill up."""
    front = undominated(found)
    others = [point for point in found if point not in front]
    ranked = [*sorted(front, key=_p99), *sorted(others, key=_p99)]
    return ranked[:count]


def _p99(point: Point) -> float:
    return point.p99


def lowest_at(curve: Sequence[Point], long: float, value: Callable[[Point], float]) -> float | None:
    """The lowest value that a curve reaches when the long prompt completes after ``long`` seconds.

    As :func:`value_at`, along those points only that no earlier one equals or undercuts.
    """
    front: list[Point] = []
    for point in sorted(curve, key=lambda point: (point.long, value(point))):
        if not front or value(point) < value(front[-1]):
            front.append(point)
    return value_at(front, long, value)


def value_at(curve: Sequence[Point], long: float, value: Callable[[Point], float]) -> float | None:
    """A curve's value when the long prompt completes after ``long`` seconds, interpolated between its points.

    After the last point it stays: that setting completes sooner still.

    Args:
        curve: One side's points, in any order.
        long: Seconds.
        value: Of a point.

    Returns:
        None when the curve does not complete so early, by more than :data:`SAME_TIME`.
    """
    line = sorted((point.long, value(point)) for point in curve)
    if not line or long * SAME_TIME < line[0][0]:
        return None
    if long <= line[0][0]:
        return line[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(line):
        if long <= x1:
            return y0 + (y1 - y0) * (long - x0) / (x1 - x0)
    return line[-1][1]
