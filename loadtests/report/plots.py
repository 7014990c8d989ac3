"""Plots of all requests of a point: latencies, objectives and prompt lengths. Each function returns an SVG."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from ropeswitch.loadtests.client.assertions import OBJECTIVES, Slo
from ropeswitch.loadtests.client.bands import Band, short
from ropeswitch.loadtests.client.records import Exchange, Point, Side
from ropeswitch.loadtests.report import plot_style as style
from ropeswitch.loadtests.report.plot_style import COLOURS, FAINT, STYLES
from ropeswitch.loadtests.report.reading import SIDES, band_names, sides, usable
from ropeswitch.loadtests.report.series import length, tpot

LATENCIES = {
    "ttft": "Time to first token",
    "itl": "Time between chunks",
    "tpot": "Time per output token",
    "e2el": "Time to last token",
}
PERCENTILES = {"median": "p50", "p90": "p90", "p99": "p99"}
MARKERS = {"median": "o", "p90": "_", "p99": "^"}


def latency(name: str, point: Mapping[str, Any]) -> str:
    """Draw p50, p90 and p99 of each latency by length band, with the servers side by side.

    Args:
        name: See :func:`plot_style.svg`.
        point: A point of ``results.json``.
    """
    names = band_names(point)
    with style.look():
        drawn = style.figure(11, 6.4)
        for axes, (key, title) in zip(drawn.subplots(2, 2).flat, LATENCIES.items(), strict=True):
            shown = False
            for shift, (side, figures) in zip((-0.14, 0.14), sides(point), strict=False):
                for place, band in enumerate(names):
                    shown |= _range(axes, place + shift, key, figures["bands"].get(band, {}), COLOURS[side])
            axes.set_title(title)
            if not shown:
                style.no_data(axes, "no request has one")
                continue
            axes.set(xticks=range(len(names)), xticklabels=names, xlim=(-0.6, len(names) - 0.4))
            axes.grid(False, axis="x")
            style.time_axis(axes)
        marks = [
            Line2D([], [], color=FAINT, marker=MARKERS[key], linestyle="", label=label, markersize=7)
            for key, label in PERCENTILES.items()
        ]
        keys = [Patch(color=COLOURS[side], label=side) for side, _ in sides(point)]
        drawn.legend(handles=keys + marks, loc="outside lower center", ncols=5)
        return style.svg(drawn, name, "Latency percentiles by length band")


def _range(axes: Axes, place: float, key: str, figures: Mapping[str, Any], colour: str) -> bool:
    """Draw one server's percentiles in one band as marks on a line; return whether there are any."""
    values = {mark: usable(figures.get(f"{mark}_{key}_ms")) for mark in MARKERS}
    known = {mark: value / 1000 for mark, value in values.items() if value is not None}
    if not known:
        return False
    axes.plot([place] * 2, [min(known.values()), max(known.values())], color=colour, linewidth=3, alpha=0.35)
    for mark, value in known.items():
        size = 11 if mark == "p90" else 6
        axes.plot(place, value, MARKERS[mark], color=colour, markersize=size, markeredgewidth=2 if mark == "p90" else 0)
    return True


def distributions(name: str, point: Point, bands: Sequence[Band]) -> str:
    """Draw the distributions of the time to first token and of the time between chunks, by band, for both servers."""
    colours = style.band_colours(bands)
    with style.look():
        drawn = style.figure(11, 4.2)
        first, between = drawn.subplots(1, 2)
        seen: dict[Band, None] = {}
        for band in bands:
            for side in present(point):
                done = [e for e in completed(point, side) if length(e) in band]
                ttfts = [e.ttft for e in done if e.ttft is not None]
                gaps = [gap for e in done for gap in e.itl]
                for axes, values in ((first, ttfts), (between, gaps)):
                    if values:
                        seen[band] = None
                        axes.ecdf(
                            np.maximum(values, 1e-6),
                            color=colours[band],
                            linestyle=STYLES[side],
                            linewidth=1.6,
                            rasterized=len(values) > style.DENSE,
                        )
        for axes, title in ((first, LATENCIES["ttft"]), (between, LATENCIES["itl"])):
            axes.set_title(title)
            if not axes.lines:
                style.no_data(axes, "no request has one")
                continue
            axes.set(xscale="log", ylim=(0, 1.02))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
            style.log_ticks(axes.xaxis)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.seconds(value)))
        keys = [Line2D([], [], color=colours[band], linewidth=3, label=str(band)) for band in seen]
        kinds = [Line2D([], [], color=FAINT, linestyle=STYLES[side], label=side) for side in present(point)]
        drawn.legend(handles=keys + kinds, loc="outside lower center", ncols=max(len(keys) + len(kinds), 1))
        return style.svg(drawn, name, "Distributions of the time to first token and of the time between chunks")


def goodput(name: str, result: Mapping[str, Any], point: Point, slos: Sequence[Slo], bands: Sequence[Band]) -> str:
    """Draw the share of requests that meet all objectives, and each objective alone, by band.

    Args:
        name: See :func:`plot_style.svg`.
        result: The point's entry in ``results.json``, which has the shares for all objectives together.
        point: The point's runs.
        slos: At least one objective.
        bands: Length bands.
    """
    bounded = [objective for objective in OBJECTIVES if any(objective in slo.bounds for slo in slos)]
    names = band_names(result)
    order = {str(band): band for band in bands}
    with style.look():
        rows = 1 if len(bounded) == 1 else 2
        drawn = style.figure(11, 3 * rows)
        panels = drawn.subplots(rows, 2).flat
        for unused in panels[1 + len(bounded) :]:
            unused.set_axis_off()
        for axes, objective in zip(panels, [None, *bounded], strict=False):
            for shift, (side, figures) in zip((-0.2, 0.2), sides(result), strict=False):
                alone = len(sides(result)) == 1
                for place, band in enumerate(names):
                    if objective is None:
                        share = figures["bands"].get(band, {}).get("good_share")
                    else:
                        share = _share(completed(point, side), slos, order[band], objective)
                    if share is not None:
                        at = place if alone else place + shift
                        axes.bar(at, share, 0.36, color=COLOURS[side], linewidth=0)
                        axes.text(at, share, f"{share:.0%}", ha="center", va="bottom", fontsize=8)
            axes.set_title(
                "Within all objectives" if objective is None else f"{LATENCIES[objective]} within its objective"
            )
            axes.set(
                xticks=range(len(names)), xlim=(-0.6, len(names) - 0.4), ylim=(0, 1.12), yticks=[0, 0.25, 0.5, 0.75, 1]
            )
            axes.set_xticklabels(names)
            axes.grid(False, axis="x")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        _legend_of_sides(drawn, result)
        return style.svg(drawn, name, "Share of requests within the objectives, by length band")


def _share(done: Iterable[Exchange], slos: Sequence[Slo], band: Band, objective: str) -> float | None:
    """Return the share of a band's requests that meet an objective; None if it bounds none of them."""
    kept = []
    for exchange in done:
        value = {"ttft": exchange.ttft, "tpot": tpot(exchange), "e2el": exchange.latency}[objective]
        bounds = [slo.bounds[objective] for slo in slos if objective in slo.bounds and _meant(slo, exchange)]
        if length(exchange) in band and bounds and value is not None:
            kept.append(value <= min(bounds))
    return sum(kept) / len(kept) if kept else None


def _meant(slo: Slo, exchange: Exchange) -> bool:
    return slo.band is None or length(exchange) in slo.band


def by_length(name: str, point: Point, limits: Sequence[int]) -> str:
    """Draw the time to first token of every completed request over its prompt length.

    Args:
        name: See :func:`plot_style.svg`.
        point: The runs.
        limits: Lengths at which factor sets end; lines mark those within the range of prompts.
    """
    with style.look():
        drawn = style.figure(11, 4.6)
        axes = drawn.subplots()
        lengths: list[int] = []
        for side in present(point):
            done = [e for e in completed(point, side) if e.ttft is not None]
            lengths += map(length, done)
            dense = len(done) > style.DENSE
            axes.scatter(
                [max(length(e), 1) for e in done],
                [max(e.ttft or 0, 1e-6) for e in done],
                s=9 if dense else 18,
                color=style.PIXELS[side] if dense else COLOURS[side],
                alpha=0.55,
                linewidths=0,
                rasterized=dense,
            )
        if not lengths:
            style.no_data(axes, "no request has a first token")
            return style.svg(drawn, name, "Time to first token over prompt length: none")
        style.length_axis(axes, max(lengths), max(min(lengths), 1))
        style.time_axis(axes)
        axes.set(xlabel="prompt tokens", ylabel="time to first token")
        for limit in limits:
            if min(lengths) <= limit <= max(lengths):
                axes.axvline(limit, color=style.MARK, linewidth=1, linestyle=":")
                axes.annotate(
                    f" set ends at {short(limit)}",
                    (limit, 1),
                    xycoords=("data", "axes fraction"),
                    color=style.MARK,
                    fontsize=8,
                    va="top",
                )
        keys = [Line2D([], [], color=COLOURS[side], marker="o", linestyle="", label=side) for side in present(point)]
        axes.legend(handles=keys, loc="upper left")
        return style.svg(drawn, name, "Time to first token over prompt length")


def completed(point: Point, side: Side) -> list[Exchange]:
    """Return the completed requests of all repetitions against one server."""
    return [exchange for run in point.side(side) for exchange in run.exchanges if exchange.status == "completed"]


def present(point: Point) -> list[Side]:
    """Return the servers that the point has runs of."""
    return [side for side in SIDES if point.side(side)]


def _legend_of_sides(drawn: Figure, result: Mapping[str, Any]) -> None:
    keys = [Patch(color=COLOURS[side], label=side) for side, _ in sides(result)]
    drawn.legend(handles=keys, loc="outside lower center", ncols=2)
