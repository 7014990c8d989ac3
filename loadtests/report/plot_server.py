"""Plots the server's metrics over a run, next to the client's measurements."""

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ropeswitch.loadtests.client.records import Run
from ropeswitch.loadtests.report import plot_style as style
from ropeswitch.loadtests.report import server_metrics as metrics
from ropeswitch.loadtests.report.plot_style import COLOURS, FAINT, MARK
from ropeswitch.loadtests.report.series import bins, in_flight, output_rate

LINES = dict(zip(metrics.GAUGES, ("-", "--", ":"), strict=True))


def server(name: str, run: Run) -> str:
    """Draw requests, KV cache, tokens per second and switches over a run; a panel without a metric says so.

    Args:
        name: See :func:`plot_style.svg`.
        run: A run with at least one sample.
    """
    with style.look():
        drawn = style.figure(11, 5.6)
        requests, cache, tokens, switches = drawn.subplots(2, 2).flat
        _requests(requests, run)
        _lines(cache, run, "KV cache in use", metrics.CACHE)
        cache.set_ylim(0, 1.05)
        cache.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        _tokens(tokens, run)
        _switches(switches, run)
        for axes in (requests, cache, tokens, switches):
            # An empty panel has a message and no ticks.
            if axes.lines or axes.patches:
                axes.set(xlabel="seconds since the run's start", xlim=(0, max(run.duration, 1e-3)))
        return style.svg(drawn, name, f"Metrics of the {run.side} over the run")


def _requests(axes: Axes, run: Run) -> None:
    axes.set_title("Requests")
    axes.step(*in_flight(run.exchanges), where="post", color=FAINT, linewidth=1, label="in flight at the client")
    for label, series in metrics.GAUGES.items():
        times, values = metrics.series(run.samples, series)
        if times:
            axes.plot(times, values, LINES[label], color=COLOURS[run.side], linewidth=1.6, label=label)
    style.count_axis(axes)
    axes.set_ylim(top=1.4 * axes.get_ylim()[1])
    axes.legend(loc="upper left", ncols=2)


def _lines(axes: Axes, run: Run, title: str, series: str) -> None:
    axes.set_title(title)
    times, values = metrics.series(run.samples, series)
    if times:
        axes.plot(times, values, color=COLOURS[run.side], linewidth=1.6)
    else:
        style.no_data(axes, f"the server has no {series}")


def _tokens(axes: Axes, run: Run) -> None:
    axes.set_title("Output tokens/s")
    edges = bins(run.duration)
    axes.stairs(output_rate(run.exchanges, edges), edges, color=FAINT, linewidth=1, label="by the client")
    times, rates = metrics.rates(run.samples, metrics.GENERATED)
    if rates:
        axes.stairs(
            rates, times, baseline=None, color=COLOURS[run.side], linewidth=1.8, label="by the server's counter"
        )
    else:
        axes.plot([], [], color=COLOURS[run.side], label=f"the server has no {metrics.GENERATED}")
    style.count_axis(axes)
    axes.set_ylim(top=1.4 * axes.get_ylim()[1])
    axes.legend(loc="upper left", ncols=2)


def _switches(axes: Axes, run: Run) -> None:
    axes.set_title("Switches to the next factor set, cumulative")
    times, values = metrics.series(run.samples, metrics.SWITCHES)
    if not times:
        style.no_data(axes, f"the server has no {metrics.SWITCHES}")
        return
    axes.step(times, [value - values[0] for value in values], where="post", color=MARK, linewidth=1.8)
    axes.set_ylim(0, max(values[-1] - values[0], 1) * 1.1)
