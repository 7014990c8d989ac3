"""Writes the log of a search, with a line per iteration, and its plot."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from ropeswitch.factors.search.evolution import Iteration
from ropeswitch.factors.search.plan import STARTS, Plan
from ropeswitch.factors.whole_file import save_bytes, save_text


def save_log(path: str | Path, plan: Plan, iterations: Sequence[Iteration]) -> None:
    """Write one JSON line per iteration: its number, evaluations so far, perplexities and the best candidate.

    The log depends only on the search, not on when or how often it ran.
    """
    lines = []
    for each in iterations:
        scores = [scored.perplexity for scored in each.fresh]
        line = {
            "iteration": each.number,
            "evaluations": each.evaluations,
            "best": each.best.perplexity,
            "best_of_iteration": min(scores, default=None),
            "median_of_iteration": median(scores) if scores else None,
            "start_tokens": each.best.candidate.start_tokens,
            "factors": each.best.candidate.factors(plan.base),
        }
        lines.append(json.dumps(line) + "\n")
    save_text(path, "".join(lines), overwrite=True)


def save_plot(path: str | Path, plan: Plan, iterations: Sequence[Iteration], title: str) -> None:
    """Plot the best perplexity per iteration, the new candidates and the starts, as a PNG."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    best = [each.best.perplexity for each in iterations]
    axes.step([each.number for each in iterations], best, where="post", label=f"best so far: {best[-1]:.4f}", zorder=3)
    fresh = [(each.number, scored.perplexity) for each in iterations for scored in each.fresh]
    numbers, found = np.transpose(fresh)
    axes.scatter(numbers, found, 6, "0.7", label="new candidates", zorder=1)
    scores = {scored.candidate: scored.perplexity for scored in iterations[0].fresh}
    for number, (name, start) in enumerate(zip(STARTS, plan.starts, strict=False), start=1):
        if start in scores:
            label = f"{name}: {scores[start]:.4f}"
            axes.axhline(scores[start], color=f"C{number}", linewidth=1, linestyle="--", label=label, zorder=2)
    # Scale the axis to the search's gain; much worse candidates would flatten the line.
    gained = max(best[0] - best[-1], 1e-3 * best[-1])
    axes.set_ylim(best[-1] - 0.2 * gained, best[0] + 0.8 * gained)
    axes.set(xlabel="iteration", ylabel="perplexity", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    save_bytes(path, content.getvalue(), overwrite=True)
