"""The front's plot: first tokens and gaps against the time until long prompts are complete, one column per workload."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from ropeswitch.loadtests.scheduling.front import FIGURES, Run, settings

COLOURS = {False: "tab:blue", True: "tab:red"}
LABELS = {False: "stock vLLM, by setting", True: "ours, by target"}


def draw(workloads: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Write the plot to ``path`` and return ``path``.

    Args:
        workloads: Runs by workload name; at least one.
        path: The PNG file to write.
    """
    matplotlib.use("Agg")
    figure = Figure(figsize=(4.2 * len(workloads), 7), layout="constrained")
    grid = figure.subplots(2, len(workloads), squeeze=False)
    for column, (name, runs) in enumerate(workloads.items()):
        found = settings(runs)
        for row in (0, 1):
            axes = grid[row][column]
            for ours in (False, True):
                shown = [each.figures for each in found if each.ours is ours]
                axes.plot([f[2] for f in shown], [f[row] for f in shown], "o", color=COLOURS[ours], label=LABELS[ours])
            axes.set(yscale="log", xlabel=f"{FIGURES[2]}, s", ylabel=f"{FIGURES[row]}, s", title=name)
            axes.grid(True, which="both", alpha=0.3)
    grid[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=100)
    return path
