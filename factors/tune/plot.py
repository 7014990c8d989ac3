"""Draws what was compared at each length, as SVG."""

from collections.abc import Sequence
from io import BytesIO

import matplotlib
from matplotlib.figure import Figure

from ropeswitch.factors.rules.lengths import length_name
from ropeswitch.factors.tune.run import Rung


def draw(found: Sequence[Rung]) -> bytes:
    """Return a plot with one panel per rung: each candidate's ratio to the automatic ladder, with its 95% interval."""
    rows = max(len(rung.compared) for rung in found)
    with matplotlib.rc_context({"svg.hashsalt": "tune", "text.parse_math": False}):
        figure = Figure(figsize=(2 + 3.2 * len(found), 1.4 + 0.28 * rows), layout="constrained")
        figure.suptitle("Perplexity beyond the window, as a ratio to the automatic ladder's")
        for axes, rung in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
            for row, each in enumerate(rung.compared):
                colour = "tab:blue" if each.source == rung.chosen.source else "tab:gray"
                axes.plot([each.low, each.high], [row, row], color=colour)
                axes.plot([each.ratio], [row], "o", color=colour)
            axes.axvline(1.0, color="lightgray", zorder=0)
            axes.set_yticks(range(len(rung.compared)), [each.source for each in rung.compared])
            axes.invert_yaxis()
            axes.set_title(f"{length_name(rung.length)}: {rung.chosen.source}")
        content = BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
