"""The plot of docs/proof.md and README.md."""

import math
from io import BytesIO
from statistics import fmean
from typing import Any

from ropeswitch.loadtests.proof.arms import NATIVE, OURS, STATIC, WINDOW
from ropeswitch.loadtests.proof.store import PERPLEXITY
from ropeswitch.loadtests.proof.tables import ROTATIONS, TITLES, Results

_COLOURS = {NATIVE: "#7f7f7f", STATIC: "#d62728", OURS: "#1f77b4"}


def draw(results: Results) -> bytes:
    """Return an SVG with perplexity against the unscaled model within the window, and perplexity at every length.

    Its description is the digest of the results it shows.
    """
    import matplotlib

    matplotlib.use("Agg")
    # Keep text as text, and make the same results give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "proof"})
    from matplotlib import pyplot

    figure, (within, all_lengths) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    lengths = [length for length in results.lengths(PERPLEXITY) if len(results.losses(OURS, length)) > 1]
    # A logarithmic axis needs a value.
    if lengths:
        _against_native(within, results, [length for length in lengths if length <= WINDOW])
        _by_length(all_lengths, results, lengths)
    content = BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None, "Description": results.digest})
    pyplot.close(figure)
    return content.getvalue()


def _against_native(axis: Any, results: Results, lengths: list[int]) -> None:
    for number, rotation in enumerate((STATIC, OURS)):
        ratios = [results.ratio(rotation, NATIVE, length) for length in lengths]
        values = [100 * (each.value - 1) for each in ratios]
        errors = [[100 * (r.value - r.low) for r in ratios], [100 * (r.high - r.value) for r in ratios]]
        places = [place + (number - 0.5) * 0.36 for place in range(len(lengths))]
        axis.bar(places, values, 0.34, yerr=errors, capsize=3, color=_COLOURS[rotation], label=TITLES[rotation])
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axis.set_xlabel("tokens")
    axis.set_ylabel("perplexity against native, %")
    axis.set_title("Within the window: cost of scaling")
    axis.legend()


def _by_length(axis: Any, results: Results, lengths: list[int]) -> None:
    for rotation in ROTATIONS:
        losses = [results.losses(rotation, length) for length in lengths]
        values = [math.exp(fmean(each)) for each in losses]
        style = "--" if rotation == STATIC else "-"
        axis.plot(lengths, values, style, marker="o", markersize=4, color=_COLOURS[rotation], label=TITLES[rotation])
    axis.axvline(WINDOW, color="black", linewidth=0.8, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(lengths, [f"{round(length / 1024)}k" if length >= 1024 else str(length) for length in lengths])
    axis.set_xticks([], minor=True)
    axis.yaxis.set_major_formatter("{x:.4g}")
    axis.yaxis.set_minor_formatter("{x:.4g}")
    axis.set_xlabel("tokens (dotted: the window)")
    axis.set_ylabel("perplexity")
    axis.set_title("All lengths")
    axis.legend()
