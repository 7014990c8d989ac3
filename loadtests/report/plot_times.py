"""Plots the timeline of a run: requests as bars, requests in flight, output tokens and how late requests were sent."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from ropeswitch.loadtests.client.bands import Band
from ropeswitch.loadtests.client.records import Exchange, Run, Side
from ropeswitch.loadtests.report import plot_style as style
from ropeswitch.loadtests.report.plot_style import BAD, FAINT, MARK
from ropeswitch.loadtests.report.series import bins, crossing, end, in_flight_at, length, output_rate

Banded = dict[Band, list[Exchange]]


def timeline(name: str, runs: Sequence[Run], bands: Sequence[Band], limits: Mapping[Side, Sequence[int]]) -> str:
    """Draw the timelines of runs, one column each, on the same scales.

    Args:
        name: See :func:`plot_style.svg`.
        runs: One run against each server.
        bands: Length bands, which set the colours.
        limits: Lengths at which each server's factor sets end; marks show when a sequence outgrew one.
    """
    colours = style.band_colours(bands)
    outgrew = False
    with style.look():
        drawn = style.figure(11, 10)
        rows = drawn.subplots(
            5, len(runs), sharex="col", sharey="row", squeeze=False, height_ratios=[3, 1.6, 1.2, 1.2, 1]
        )
        for column, run in enumerate(runs):
            banded = {band: [e for e in run.exchanges if length(e) in band] for band in bands}
            ends = limits.get(run.side, ())
            marked = [(e, at) for e in run.exchanges if (at := crossing(e, ends)) is not None]
            outgrew = outgrew or bool(marked)
            axes = rows[:, column]
            _bars(axes[0], run.exchanges, colours, marked)
            _first_tokens(axes[1], banded, colours)
            _stacks(axes[2], axes[3], banded, colours, run.duration)
            _lateness(axes[4], run.exchanges)
            axes[0].set_title(f"{run.side}: requests, in the order of sending")
            axes[1].set_title("Time to first token, by time of sending")
            axes[2].set_title("Requests in flight")
            axes[3].set_title("Output tokens/s")
            axes[4].set_title("Sent late by")
            axes[4].set(xlabel="seconds since the run's start", xlim=(0, max(1e-3, *(run.duration for run in runs))))
        style.time_axis(rows[1, 0]) if any(e.ttft for run in runs for e in run.exchanges) else None
        style.count_axis(rows[2, 0])
        style.count_axis(rows[3, 0])
        style.time_axis(rows[4, 0], log=False)
        drawn.legend(handles=_keys(runs, bands, outgrew), loc="outside lower center", ncols=9)
        return style.svg(drawn, name, "Timeline of the requests")


def _bars(
    axes: Axes, exchanges: Sequence[Exchange], colours: dict[Band, str], marked: Sequence[tuple[Exchange, float]]
) -> None:
    """Draw a thin bar per request: pale until its first token, opaque from then on."""
    places = {exchange.index: place for place, exchange in enumerate(sorted(exchanges, key=lambda e: e.sent))}
    dense = len(exchanges) > style.DENSE / 3
    width = float(np.clip(420 / max(len(exchanges), 1), 0.4, 5))
    for alpha, spans in (
        (0.35, [(e, e.sent, e.sent + e.ttft if e.ttft is not None else end(e)) for e in exchanges]),
        (1.0, [(e, e.sent + e.ttft, end(e)) for e in exchanges if e.ttft is not None]),
    ):
        lines = [[(start, places[e.index]), (stop, places[e.index])] for e, start, stop in spans]
        paints = [next((colours[band] for band in colours if length(e) in band), "#888888") for e, _, _ in spans]
        axes.add_collection(LineCollection(lines, colors=paints, alpha=alpha, linewidths=width, rasterized=dense))
    failed = [e for e in exchanges if e.status == "failed"]
    axes.plot(
        [end(e) for e in failed], [places[e.index] for e in failed], "x", color=BAD, markersize=7, markeredgewidth=2
    )
    axes.plot([at for _, at in marked], [places[e.index] for e, at in marked], "D", color=MARK, markersize=4)
    axes.set(ylim=(max(len(exchanges), 1), -1), yticks=[])
    axes.grid(False, axis="y")


def _first_tokens(axes: Axes, banded: Banded, colours: dict[Band, str]) -> None:
    dense = sum(map(len, banded.values())) > style.DENSE
    for band, exchanges in banded.items():
        done = [e for e in exchanges if e.ttft is not None]
        times = [max(e.ttft or 0, 1e-6) for e in done]
        size = 5 if dense else 14
        axes.scatter([e.sent for e in done], times, s=size, color=colours[band], linewidths=0, rasterized=dense)


def _stacks(flight: Axes, output: Axes, banded: Banded, colours: dict[Band, str], duration: float) -> None:
    """Draw requests in flight and output tokens/s, stacked by band."""
    edges = bins(duration)
    moments = np.linspace(0, edges[-1], 400)
    paints = list(colours.values())
    flight.stackplot(moments, *(in_flight_at(found, moments) for found in banded.values()), colors=paints, linewidth=0)
    rates = [np.append(rate, rate[-1]) for rate in (output_rate(found, edges) for found in banded.values())]
    output.stackplot(edges, *rates, colors=paints, linewidth=0, step="post")


def _lateness(axes: Axes, exchanges: Sequence[Exchange]) -> None:
    dense = len(exchanges) > style.DENSE
    late = [max(e.lateness, 0) for e in exchanges]
    axes.scatter(
        [e.sent for e in exchanges], late, s=6, color="#888888" if dense else FAINT, linewidths=0, rasterized=dense
    )


def _keys(runs: Sequence[Run], bands: Sequence[Band], outgrew: bool) -> list[Line2D]:
    colours = style.band_colours(bands)
    exchanges = [exchange for run in runs for exchange in run.exchanges]
    keys = [
        Line2D([], [], color=colours[band], linewidth=5, label=str(band))
        for band in bands
        if any(length(exchange) in band for exchange in exchanges)
    ]
    if any(exchange.status == "failed" for exchange in exchanges):
        keys.append(Line2D([], [], color=BAD, marker="x", linestyle="", markeredgewidth=2, label="failed"))
    if outgrew:
        keys.append(Line2D([], [], color=MARK, marker="D", linestyle="", markersize=5, label="outgrew its factor set"))
    return keys
