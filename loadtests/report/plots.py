"""The four plots of a point as SVG: first token and longest gap by prompt length, requests in flight, throughput."""

from collections.abc import Callable, Sequence

from matplotlib.lines import Line2D

from ropeswitch.loadtests.client.bands import short
from ropeswitch.loadtests.client.records import Exchange, Point, Side
from ropeswitch.loadtests.report import plot_style as style
from ropeswitch.loadtests.report.plot_style import COLOURS
from ropeswitch.loadtests.report.reading import SIDES
from ropeswitch.loadtests.report.series import bins, changes, end, output_rate, prompt_rate

START = "seconds since the run's start"


def present(point: Point) -> list[Side]:
    """Return the servers that the point has runs of."""
    return [side for side in SIDES if point.side(side)]


def first_token(name: str, point: Point, limits: Sequence[int]) -> str:
    """Draw the time to first token of every completed request over its prompt length."""
    return _by_length(name, point, limits, "Time to first token", lambda exchange: exchange.ttft)


def gaps(name: str, point: Point, limits: Sequence[int]) -> str:
    """Draw the longest gap between two chunks of every completed request; lines mark where factor sets end."""
    return _by_length(name, point, limits, "Longest gap in an answer", lambda exchange: max(exchange.itl, default=None))


def _by_length(
    name: str, point: Point, limits: Sequence[int], title: str, value: Callable[[Exchange], float | None]
) -> str:
    with style.look():
        drawn = style.figure(3.6)
        axes = drawn.subplots()
        axes.set_title(title)
        lengths: list[int] = []
        for side in present(point):
            done = [each for run in point.side(side) for each in run.exchanges if each.status == "completed"]
            shown = [(max(each.prompt_tokens, 1), found) for each in done if (found := value(each)) is not None]
            lengths += [tokens for tokens, _ in shown]
            dense = len(shown) > style.DENSE
            axes.scatter(
                [tokens for tokens, _ in shown],
                [max(found, 1e-6) for _, found in shown],
                s=9 if dense else 18,
                color=style.PIXELS[side] if dense else COLOURS[side],
                alpha=0.55,
                linewidths=0,
                rasterized=dense,
            )
        if not lengths:
            style.no_data(axes, "no request has one")
            return style.svg(drawn, name, f"{title} by prompt length: none")
        style.length_axis(axes, max(lengths), min(lengths))
        style.time_axis(axes)
        axes.set(xlabel="prompt tokens")
        for limit in limits:
            if min(lengths) <= limit <= max(lengths):
                axes.axvline(limit, color=style.MARK, linewidth=1, linestyle=":")
                axes.annotate(
                    f" set ends at {short(limit)}", (limit, 1), xycoords=("data", "axes fraction"), color=style.MARK,
                    fontsize=8, va="top",
                )  # fmt: skip
        if len(present(point)) > 1:
            drawn.legend(handles=_keys(point, marker="o", linestyle=""), loc="outside upper right", ncols=2)
        return style.svg(drawn, name, f"{title} by prompt length")


def timeline(name: str, point: Point) -> str:
    """Draw requests in flight, and those of them without a first token, over the first run against each server."""
    with style.look():
        drawn = style.figure(3)
        panels = drawn.subplots(1, len(present(point)), squeeze=False, sharey="row")[0]
        for axes, side in zip(panels, present(point), strict=True):
            run = point.side(side)[0]
            axes.set_title(f"Requests of the {side}")
            axes.step(
                *changes((each.sent, end(each)) for each in run.exchanges),
                where="post", color=COLOURS[side], linewidth=1.5, label="in flight",
            )  # fmt: skip
            waits = [(each.sent, end(each) if each.ttft is None else each.sent + each.ttft) for each in run.exchanges]
            axes.fill_between(
                *changes(waits), step="post", color=COLOURS[side], alpha=0.3, linewidth=0, label="queued or in prefill"
            )
            axes.set(xlabel=START, xlim=(0, max(run.duration, 1e-3)))
            style.count_axis(axes)
            axes.set_ylim(top=1.25 * axes.get_ylim()[1])
            axes.legend(loc="upper left", ncols=2)
        return style.svg(drawn, name, "Requests in flight and in the queue over the run")


def throughput(name: str, point: Point) -> str:
    """Draw output tokens/s, and prompt and output tokens/s, over the first run against each server."""
    with style.look():
        drawn = style.figure(3)
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
            axes.set(xlabel=START, xlim=(0, None))
            style.count_axis(axes)
        if len(present(point)) > 1:
            drawn.legend(handles=_keys(point, linewidth=2), loc="outside lower center", ncols=2)
        return style.svg(drawn, name, "Tokens per second over the run")


def _keys(point: Point, **looks: object) -> list[Line2D]:
    return [Line2D([], [], color=COLOURS[side], label=side, **looks) for side in present(point)]  # type: ignore[arg-type]
