"""Plots the checks of a factor file."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from ropeswitch.factors.check.base_bound import similarity
from ropeswitch.factors.check.report import Report, SetReport
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.whole_file import save_bytes
from ropeswitch.kernels.angles import inverse_frequencies

SUFFIXES = (".png", ".svg")
# Points of a B(m) curve, each the minimum of its neighbourhood.
POINTS = 600


def check_suffix(path: str | Path) -> None:
    """Refuse a file name without a supported image suffix.

    Raises:
        FactorError: listing the supported suffixes.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise FactorError(f"--plot: {str(path)!r} must end in {' or '.join(SUFFIXES)}")


def save_plot(path: str | Path, report: Report, *, overwrite: bool = False) -> None:
    """Plot factors, wavelengths, B(m) and errors of every set as PNG or SVG, depending on the file's suffix.

    Raises:
        FactorError: for another suffix, or a file that cannot be written.
    """
    from matplotlib.figure import Figure

    check_suffix(path)
    figure = Figure(figsize=(13, 9), layout="constrained")
    (factors, wavelengths), (bound, errors) = figure.subplots(2, 2)
    for index, each in enumerate(report.sets):
        colour = f"C{index}"
        _draw_pairs(factors, wavelengths, report, each, colour)
        distances, values = _lowest(report, each)
        bound.plot(distances, values, color=colour, lw=1, label=each.name)
        _draw_errors(errors, each, colour, index == 0)
    _shade(factors, report)
    _shade(wavelengths, report)
    factors.set(xlabel="pair", ylabel="factor", yscale="log", title="factors; circled: angles unseen in training")
    wavelengths.axhline(1, color="black", lw=0.8)
    wavelengths.set(xlabel="pair", ylabel="wavelength / original window", yscale="log", title="wavelengths")
    bound.axhline(0, color="black", lw=0.8)
    bound.set(
        xlabel="distance m", ylabel="B(m), local minimum", xscale="log", title="base bound: violated where B(m) < 0"
    )
    errors.set(xlabel="tokens", ylabel="largest error", xscale="log", yscale="log", title="cos and sin against float64")
    for axes in (factors, wavelengths, bound, errors):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix[1:].lower(), dpi=110)
    save_bytes(path, buffer.getvalue(), overwrite=overwrite)


def _draw_pairs(factors: Any, wavelengths: Any, report: Report, each: SetReport, colour: str) -> None:
    pairs = each.shape.pairs
    index = [pair.pair for pair in pairs]
    factors.plot(index, [pair.factor for pair in pairs], ".-", color=colour, label=each.name)
    unseen = [pair for pair in pairs if pair.unseen]
    factors.plot([p.pair for p in unseen], [p.factor for p in unseen], "o", mfc="none", color=colour)
    window = report.rope.original_length
    wavelengths.plot(index, [pair.wavelength / window for pair in pairs], ".-", color=colour, label=each.name)


def _shade(axes: Any, report: Report) -> None:
    """Shade the pairs from the critical pair on, which never completed a rotation in training."""
    first = report.rope.critical_dimension // 2
    if first < report.rope.pairs:
        axes.axvspan(
            first - 0.5, report.rope.pairs - 0.5, color="grey", alpha=0.15, label="no full rotation in training"
        )


def _lowest(report: Report, each: SetReport) -> tuple[list[float], list[float]]:
    factors = tuple(pair.factor for pair in each.shape.pairs)
    frequencies = inverse_frequencies(report.rope.theta, report.rope.rotary_dim, factors)
    values = np.concatenate([block for _, block in similarity(frequencies, each.length)])
    edges = np.unique(np.geomspace(1, len(values), POINTS).astype(int))[:-1]
    return edges.tolist(), np.minimum.reduceat(values, edges).tolist()


def _draw_errors(axes: Any, each: SetReport, colour: str, named: bool) -> None:
    kinds = {
        "float32": ("float32 angles", "-"),
        "bfloat16": ("float32 angles in bfloat16", "--"),
        "bfloat16_exact": ("exact angles in bfloat16", ":"),
        "ours": ("ours", "-."),
    }
    lengths = [at.length for at in each.precision]
    for field, (label, style) in kinds.items():
        values = [getattr(at, field) for at in each.precision]
        axes.plot(lengths, values, style, color=colour, marker=".", label=f"{each.name}: {label}" if named else None)
