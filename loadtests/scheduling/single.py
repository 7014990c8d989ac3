"""The scheduling benchmark's tables for the long prompt alone, a request that crosses the limit, and the burst."""

import statistics
from typing import Any

from ropeswitch.loadtests.scheduling.settings import BURST, CROSSING, CROSSING_UNCACHED, OURS, STOCK
from ropeswitch.loadtests.scheduling.tables import Figure, Record, milliseconds, seconds, table

ALONE, CROSSING_GAP = 1.02, 5.0
# A switch shows in the gap that ends with its token, or in a neighbouring one if the engine drains first.
BESIDE_SWITCH = 2


def alone(phases: dict[str, list[Record]]) -> tuple[str, list[Figure]]:
    sides: dict[str, dict[int, float]] = {STOCK.name: {}, OURS.name: {}}
    for record in phases["alone"]:
        sides[record["setting"]][record["round"]] = record["result"]["long"]
    stock, ours = sides[STOCK.name], sides[OURS.name]
    both = sorted(stock.keys() & ours.keys())
    if not both:
        return "### The long prompt alone\n\nNo round has both sides.", []
    ratios = [ours[i] / stock[i] for i in both]
    median = statistics.median(ratios)
    rows = [[str(i + 1), seconds(stock[i]), seconds(ours[i]), f"{ours[i] / stock[i]:.3f}"] for i in both]
    text = "### The long prompt alone\n\n" + table(["round", "stock s", "ours s", "ours / stock"], rows)
    figure = Figure(
        f"the long prompt alone, ours / stock, median of {len(both)}",
        f"at most {ALONE}",
        f"{median:.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        median <= ALONE,
    )
    return text, [figure]


def crossing(phases: dict[str, list[Record]]) -> tuple[str, list[Figure]]:
    rows, figures = [], []
    for setting in (CROSSING.name, CROSSING_UNCACHED.name):
        results = [record["result"] for record in phases["crossing"] if record["setting"] == setting]
        if not results:
            continue
        spans = [_around(result["gaps"], result["switch"]) for result in results]
        others = [max(result["other"]) for result in results]
        row = [setting, str(len(results)), milliseconds(statistics.median(_median(results, "gaps")))]
        row += [milliseconds(max(span[part] for span in spans)) for part in range(3)]
        row += [_spread(_worst(results, "gaps")), f"{_usual_worst(results):.1f}", _spread(_worst(results, "level"))]
        rows.append([*row, milliseconds(max(others))])
        if setting == CROSSING.name:
            figures += _crossing_figures(results)
    parts = ["before the switch", "at it", "after it"]
    header = ["engine", "rounds", "median gap ms", *(f"worst {part} ms" for part in parts), "worst / median gap"]
    header += [
        "the same, each gap as its median over the rounds",
        "worst / median of a request that stays below the limit",
    ]
    header.append("other request's worst ms")
    return "### A request that crosses the limit\n\n" + table(header, rows), figures


def _crossing_figures(results: list[dict[str, Any]]) -> list[Figure]:
    worst = _worst(results, "gaps")
    required = f"at most {CROSSING_GAP:g}"
    return [
        Figure(name, required, f"{value:.2f}", value <= CROSSING_GAP)
        for name, value in (
            ("a crossing request's worst gap / its median gap, worst round", max(worst)),
            ("the same, median of the rounds", statistics.median(worst)),
            ("the same, each gap as its median over the rounds", _usual_worst(results)),
        )
    ]


def _median(results: list[dict[str, Any]], request: str) -> list[float]:
    return [statistics.median(result[request]) for result in results]


def _worst(results: list[dict[str, Any]], request: str) -> list[float]:
    return [max(result[request]) / median for result, median in zip(results, _median(results, request), strict=True)]


def _usual_worst(results: list[dict[str, Any]]) -> float:
    """Return worst / median gap, where each gap is its median over the rounds, which removes single-round noise."""
    usual = [statistics.median(gaps) for gaps in zip(*(result["gaps"] for result in results), strict=True)]
    return max(usual) / statistics.median(usual)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def burst(phases: dict[str, list[Record]], bound: float | None) -> tuple[str, list[Figure]]:
    rows, figures = [], []
    for name in (STOCK.name, OURS.name):
        results = [record["result"] for record in phases["burst"] if record["setting"] == name]
        if not results:
            continue
        short = max(max(result["ttfts"]) for result in results)
        long = max(result["long"] for result in results)
        rows.append([name, str(len(results)), seconds(short), seconds(long)])
        if name == OURS.name:
            required = "the documented bound" if bound is None else f"at most {bound:g} s"
            met = None if bound is None else max(short, long) <= bound
            figures.append(Figure("the burst's longest wait with ours", required, f"{max(short, long):.3f} s", met))
    header = ["engine", "runs", "longest wait of a short request s", "longest wait of the long prompt s"]
    return f"### {BURST} short requests and a long one at once\n\n" + table(header, rows), figures


def _around(gaps: list[float], switch: int) -> tuple[float, float, float]:
    first, last = switch - BESIDE_SWITCH, switch + BESIDE_SWITCH + 1
    return max(gaps[:first]), max(gaps[first:last]), max(gaps[last:])
