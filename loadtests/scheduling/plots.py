"""The scheduling benchmark's plots: latency of short requests against the long prompt's completion time."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from ropeswitch.loadtests.scheduling.curves import Point, points

PLOTS: dict[str, tuple[str, Callable[[Point], float]]] = {
    "p99.png": ("p99 time to first token of the short requests, s", lambda point: point.p99),
    "gap.png": ("worst gap of the decoding request, s", lambda point: point.gap),
}
# Each curve's colour, and the words of its settings' names that its label already has.
CURVES = {
    "stock, threshold": ("tab:blue", "threshold "),
    "stock, adaptive threshold": ("tab:cyan", "threshold "),
    "stock, batched tokens": ("tab:green", "batched tokens "),
    "stock, default": ("black", "stock "),
    "ours, by step latency target": ("tab:red", "ours "),
}


def draw(records: Iterable[dict[str, Any]], folder: Path) -> list[Path]:
    """Write both plots into ``folder`` and return their paths.

    The sweep's single runs are joined; the alternating rounds' medians are filled marks.
    """
    matplotlib.use("Agg")
    phases: dict[str, list[dict[str, Any]]] = {"sweep": [], "rounds": []}
    for record in records:
        if record["phase"] in phases:
            phases[record["phase"]].append(record)
    paths = []
    for name, (label, value) in PLOTS.items():
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        for curve, (colour, prefix) in CURVES.items():
            sweep = [point for point in points(phases["sweep"]) if _curve(point) == curve]
            rounds = [point for point in points(phases["rounds"]) if _curve(point) == curve]
            line = sorted(sweep, key=lambda point: point.long)
            axes.plot([p.long for p in line], [value(p) for p in line], "o-", color=colour, mfc="white", label=curve)
            axes.plot([p.long for p in rounds], [value(p) for p in rounds], "o", color=colour)
            for point in sweep or rounds:
                text = point.setting.removeprefix(prefix).removesuffix(" adaptive")
                place = (point.long, value(point))
                axes.annotate(text, place, (4, 4), textcoords="offset points", fontsize=7, color=colour)
        axes.set(xlabel="time to first token of the long prompt, s", ylabel=label, yscale="log")
        axes.grid(True, which="both", alpha=0.3)
        axes.legend(fontsize=8)
        figure.savefig(folder / name, dpi=120)
        paths.append(folder / name)
    return paths


def _curve(point: Point) -> str:
    if point.ours:
        return "ours, by step latency target"
    if point.setting.endswith("adaptive"):
        return "stock, adaptive threshold"
    kinds = {"threshold": "stock, threshold", "batched": "stock, batched tokens", "stock": "stock, default"}
    return kinds[point.setting.split()[0]]
