"""Plots of one workload: waiting times by prompt length, and the trade-off of each setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes

from ropeswitch.loadtests.simulation.policies import Policy
from ropeswitch.loadtests.simulation.records import Outcome
from ropeswitch.loadtests.simulation.report import CLASSES, SHORT, Figures

# Draw into files, without a display.
matplotlib.use("Agg")

COLOURS = {"default": "tab:red", "tuned": "tab:orange", "ours": "tab:blue"}


def draw(path: Path, title: str, runs: Sequence[Figures], drawn: Mapping[Policy, Outcome]) -> None:
    """Write a PNG.

    Args:
        path: Output file, replaced if it exists.
        title: Description of the workload.
        runs: Every run of the workload.
        drawn: Runs whose requests are drawn individually, one of each kind.
    """
    from matplotlib import pyplot

    figure, (lengths, tail, trade) = pyplot.subplots(1, 3, figsize=(18, 5.5), layout="constrained")
    _lengths(lengths, drawn)
    _tail(tail, drawn)
    _trade(trade, runs)
    figure.suptitle(f"{title}\nsimulated with datasheet rates, not measured", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _lengths(axes: Axes, drawn: Mapping[Policy, Outcome]) -> None:
    for policy, outcome in drawn.items():
        prompts = [record.arrival.prompt for record in outcome.records]
        waits = [record.first_token_seconds for record in outcome.records]
        axes.scatter(prompts, waits, s=6, alpha=0.5, color=COLOURS[policy.kind], label=str(policy))
    axes.set(xscale="log", yscale="log", xlabel="prompt tokens", ylabel="time to first token, s")
    axes.legend(fontsize=8)


def _tail(axes: Axes, drawn: Mapping[Policy, Outcome]) -> None:
    """Draw the share of short requests that wait longer than a time."""
    limit = CLASSES[0][1]
    for policy, outcome in drawn.items():
        waits = sorted(record.first_token_seconds for record in outcome.records if record.arrival.prompt <= limit)
        shares = [1 - i / len(waits) for i in range(len(waits))]
        axes.step(waits, shares, where="pre", color=COLOURS[policy.kind], label=str(policy))
    axes.set(xscale="log", yscale="log", xlabel="time to first token, s", ylabel=f"share of prompts {SHORT} above")
    axes.legend(fontsize=8)


def _trade(axes: Axes, runs: Sequence[Figures]) -> None:
    """Draw every setting's waiting time of short requests against the completion time of the longest prompt."""
    for run in runs:
        place = (run.waits[SHORT].p99, run.longest_done)
        axes.scatter(*place, s=30, color=COLOURS[run.policy.kind])
        below = -9 if run.policy.adaptive else 3
        axes.annotate(str(run.policy), place, fontsize=7, xytext=(4, below), textcoords="offset points")
    axes.margins(x=0.35)
    axes.set(xscale="log", xlabel=f"time to first token, p99 of prompts {SHORT}, s", ylabel="longest prompt done, s")
