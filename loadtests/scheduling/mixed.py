"""The scheduling benchmark's tables of the long prompt with short requests beside it: the sweep and the rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

from ropeswitch.loadtests.scheduling.curves import Point, lowest_at, points, value_at
from ropeswitch.loadtests.scheduling.settings import OURS, STOCK
from ropeswitch.loadtests.scheduling.tables import Figure, Record, least, ratio, seconds, table

AGAINST_DEFAULT, AGAINST_TUNED, AGAINST_TUNED_GAP, THROUGHPUT, SHORTS = 50.0, 3.0, 1.8, 0.95, 200

NOTE = (
    "p99: the nearest rank of the seconds to the first token, over all short requests of the row. Ratios: ours at the time "
    "at which the stock setting completes the long prompt, interpolated between our targets; above 1 is better with ours."
)


@dataclass(frozen=True)
class Comparison:
    """A stock setting against our curve at its completion time; each ratio is above 1 where ours is better.

    The ratios are None where ours does not complete so early.
    """

    stock: Point
    p99: float | None
    gap: float | None
    throughput: float | None


def compare(found: Sequence[Point]) -> list[Comparison]:
    """Every tuned stock setting against our curve; ``found`` has the points of both sides."""
    curve = [point for point in found if point.ours]

    def against(stock: Point) -> Comparison:
        p99 = lowest_at(curve, stock.long, lambda point: point.p99)
        gap = lowest_at(curve, stock.long, lambda point: point.gap)
        throughput = value_at(curve, stock.long, lambda point: point.throughput)
        return Comparison(
            stock,
            None if p99 is None else stock.p99 / p99,
            None if gap is None else stock.gap / gap,
            None if throughput is None else throughput / stock.throughput,
        )

    return [against(point) for point in found if not point.ours and point.setting != STOCK.name]


def sweep(phases: dict[str, list[Record]]) -> tuple[str, list[Figure]]:
    found = points(phases["sweep"])
    compared = compare(found)
    text = f"### The sweep, one run of every setting\n\n{NOTE}\n\n{_curve_table(found)}"
    return text, [
        least("p99, every tuned stock setting / ours at the same time", 1.0, [c.p99 for c in compared]),
        least("worst gap, every tuned stock setting / ours at the same time", 1.0, [c.gap for c in compared]),
    ]


def rounds(phases: dict[str, list[Record]]) -> tuple[str, list[Figure]]:
    found = points(phases["rounds"])
    compared = compare(found)
    by_name = {point.setting: point for point in found}
    text = f"### The best stock settings, {max(p.runs for p in found)} alternating rounds\n\n{NOTE}\n\n{_curve_table(found)}"
    figures = []
    if STOCK.name in by_name and OURS.name in by_name:
        default = by_name[STOCK.name].p99 / by_name[OURS.name].p99
        figures.append(least("p99, stock's default / our default", AGAINST_DEFAULT, [default]))
    figures += [
        least("p99, best stock settings / ours at the same time", AGAINST_TUNED, [c.p99 for c in compared]),
        least("worst gap, best stock settings / ours at the same time", AGAINST_TUNED_GAP, [c.gap for c in compared]),
        least("tokens/s, ours at the same time / best stock settings", THROUGHPUT, [c.throughput for c in compared]),
    ]
    if OURS.name in by_name:
        ratios = [by_name[OURS.name].throughput / c.stock.throughput for c in compared]
        figures.append(least("tokens/s, our default / best stock settings", THROUGHPUT, ratios))
    shorts = min(point.shorts for point in found)
    figures.append(Figure("short requests per setting", f"at least {SHORTS}", str(shorts), shorts >= SHORTS))
    return text, figures


def _curve_table(found: Sequence[Point]) -> str:
    compared = {comparison.stock: comparison for comparison in compare(found)}
    rows = []
    for point in sorted(found, key=lambda point: (point.ours, point.long)):
        row = [point.setting, seconds(point.long), seconds(point.p99), str(point.shorts), seconds(point.gap)]
        row.append(f"{point.throughput:.0f}")
        if point in compared:
            row += [ratio(compared[point].p99), ratio(compared[point].gap), ratio(compared[point].throughput)]
        else:
            row += ["", "", ""]
        rows.append(row)
    ratios = ["p99: stock / ours", "gap: stock / ours", "tokens/s: ours / stock"]
    header = ["setting", "long prompt s", "p99 s", "short requests", "worst gap s", "tokens/s", *ratios]
    return table(header, rows)
