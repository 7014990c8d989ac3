"""Plots of throughput: over a run, and over the points of a sweep."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ropeswitch.loadtests.client.bands import Band
from ropeswitch.loadtests.client.records import Point, Side
from ropeswitch.loadtests.report import plot_style as style
from ropeswitch.loadtests.report.plot_style import COLOURS, STYLES
from ropeswitch.loadtests.report.plots import LATENCIES, present
from ropeswitch.loadtests.report.reading import SIDES, Figures, band_names, sides, usable
from ropeswitch.loadtests.report.series import bins, output_rate, prompt_rate


def throughput(name: str, point: Point) -> str:
    """Draw output tokens/s, and prompt and output tokens/s, over the first run against each server."""
    with style.look():
        drawn = style.figure(11, 3.2)
        output, total = drawn.subplots(1, 2)
        for side in present(point):
            run = point.side(side)[0]
            edges = bins(run.duration)
            outputs = output_rate(run.exchanges, edges)
            for axes, rates in ((output, outputs), (total, outputs + prompt_rate(run.exchanges, edges))):
                axes.stairs(rates, edges, baseline=None, color=COLOURS[side], linewidth=1.5)
                axes.fill_between(edges[:-1], rates, step="post", color=COLOURS[side], alpha=0.12, linewidth=0)
        for axes, title in ((output, "Output tokens/s"), (total, "Prompt and output tokens/s")):
            axes.set_title(title)
            axes.set(xlabel="seconds since the run's start", xlim=(0, None))
            style.count_axis(axes)
        drawn.legend(handles=style.side_keys(present(point), plain=True), loc="outside lower center", ncols=2)
        return style.svg(drawn, name, "Tokens per second over the run")


def sweep(name: str, points: Sequence[Figures], bands: Sequence[Band]) -> str:
    """Draw throughput, goodput and the tail latencies of each length band over the points of a sweep, for both servers.

    Args:
        name: See :func:`plot_style.svg`.
        points: Points of ``results.json``, by rate if all have one, otherwise in order.
        bands: Length bands, which set the colours.
    """
    rates = [point["rate"] for point in points]
    places = list(range(len(points))) if None in rates else rates
    judged = any(figures["request_goodput"] is not None for point in points for _, figures in sides(point))
    done = ("Goodput, requests/s", "request_goodput") if judged else ("Requests/s", "request_throughput")
    colours = style.band_colours(bands)
    named = {band for point in points for band in band_names(point)}
    with style.look():
        drawn = style.figure(11, 6.4)
        panels = drawn.subplots(2, 2)
        for axes, (title, key) in zip(panels[0], (("Output tokens/s", "output_throughput"), done), strict=True):
            axes.set_title(title)
            for side in SIDES:
                values = [None if point[side] is None else point[side][key] for point in points]
                _line(axes, places, values, side, COLOURS[side])
            style.count_axis(axes)
        for axes, key in zip(panels[1], ("ttft", "itl"), strict=True):
            axes.set_title(f"{LATENCIES[key]}, p99")
            for band, colour in colours.items():
                for side in SIDES:
                    tails = [None if point[side] is None else _tail(point[side], str(band), key) for point in points]
                    _line(axes, places, tails, side, colour)
            if axes.lines:
                style.time_axis(axes)
            else:
                style.no_data(axes, "no request has one")
        labels = [point["label"] if None in rates else f"{point['rate']:g}" for point in points]
        for axes in panels.flat:
            if axes.lines:
                axes.set_xticks(places, labels)
                axes.set_xlabel("" if None in rates else "scheduled requests/s")
        keys = style.side_keys(dict.fromkeys(side for point in points for side, _ in sides(point)))
        keys += [
            Line2D([], [], color=colours[band], linewidth=4, label=str(band)) for band in bands if str(band) in named
        ]
        drawn.legend(handles=keys, loc="outside lower center", ncols=max(len(keys), 1))
        return style.svg(drawn, name, "Throughput and tail latencies over the rates of the sweep")


def _tail(figures: Figures, band: str, key: str) -> float | None:
    """Return the 99th percentile of a latency in a band, in seconds."""
    value = usable(figures["bands"].get(band, {}).get(f"p99_{key}_ms"))
    return None if value is None else value / 1000


def _line(axes: Axes, places: Sequence[float], values: Sequence[float | None], side: Side, colour: str) -> None:
    known = sorted((place, value) for place, value in zip(places, values, strict=True) if value is not None)
    if known:
        xs, ys = zip(*known, strict=True)
        axes.plot(xs, ys, STYLES[side], color=colour, marker="o", markersize=5, linewidth=1.8)
