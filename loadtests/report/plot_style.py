"""The style of all figures: SVG with colours set by the page, for light and dark themes."""

import re
from contextlib import AbstractContextManager
from html import escape
from io import StringIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ropeswitch.loadtests.client.bands import short
from ropeswitch.loadtests.client.records import Side

# Placeholder colours for matplotlib, and what replaces them: the page's CSS variable, with a fallback colour.
PAINTS = {
    "#010201": ("--text", "#1b1f24"),
    "#010202": ("--faint", "#57606a"),
    "#010203": ("--line", "#d0d7de"),
    "#010204": ("--target", "#1f6fd6"),
    "#010205": ("--baseline", "#d9730d"),
    "#010207": ("--mark", "#c2185b"),
}
TEXT, FAINT, LINE, TARGET, BASELINE, MARK = PAINTS
COLOURS: dict[Side, str] = {"target": TARGET, "baseline": BASELINE}
# Rasterized points cannot use the page's variables.
PIXELS: dict[Side, str] = {"target": "#3a83e0", "baseline": "#e08534"}
# Scatter plots with more points are rasterized.
DENSE = 1500

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none", "font.size": 10, "font.sans-serif": ["DejaVu Sans"],
    # Labels come from users, whose dollar signs are not math.
    "text.parse_math": False, "text.color": TEXT,
    "axes.labelcolor": FAINT, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.edgecolor": LINE, "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none",
    "axes.axisbelow": True, "axes.grid": True, "grid.color": LINE, "grid.linewidth": 0.6,
    "xtick.color": LINE, "ytick.color": LINE, "xtick.labelcolor": FAINT, "ytick.labelcolor": FAINT,
    "figure.facecolor": "none", "savefig.facecolor": "none", "savefig.dpi": 160, "legend.frameon": False,
}  # fmt: skip


def figure(height: float) -> Figure:
    """Return an empty figure of a height in inches; create it and draw into it within :func:`look`."""
    return Figure(figsize=(11, height), layout="constrained")


def look() -> AbstractContextManager[None]:
    """Return the context with the settings of all figures."""
    return matplotlib.rc_context(SETTINGS)


def svg(drawn: Figure, name: str, title: str) -> str:
    """Return the figure as an ``<svg>`` element that scales to the available width.

    ``name`` begins the figure's ids and is unique on the page; ``title`` is for screen readers.
    """
    out = StringIO()
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": name}):
        drawn.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Matplotlib uses the same ids in every figure, but ids must be unique on a page.
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", text)
    # Hundredths of a pixel are precise enough.
    text = re.sub(r'(?<= )(?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    for paint, (variable, otherwise) in PAINTS.items():
        text = text.replace(paint, f"var({variable}, {otherwise})")
    text = text.replace("'DejaVu Sans'", "var(--font, 'DejaVu Sans'), sans-serif")
    root = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img"'
    root += f' aria-label="{escape(title)}"'
    return re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" {root}>', text, count=1).strip()


def seconds(value: float) -> str:
    """Format a time for an axis: ``20 ms``, ``1.5 s``, ``5 min``."""
    if value == 0:
        return "0"
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size * 0.9999 * (2 if size >= 60 else 1):
            return f"{value / size:.3g} {unit}"
    return f"{value:.1e} s"


def count(value: float) -> str:
    """Format a number for an axis: ``950``, ``2.5k``, ``1M``; 1k is 1000."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def time_axis(axes: Axes) -> None:
    """Format the vertical axis as seconds on a log scale, with ticks at 1, 2 and 5 if the range is narrow."""
    axes.set_yscale("log")
    low, high = sorted(axes.yaxis.get_view_interval())
    if high / low < 10**2.5:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))


def count_axis(axes: Axes) -> None:
    """Format the vertical axis as counts, from 0 to slightly above the data."""
    tops = [beside.dataLim.ymax for beside in axes.get_shared_y_axes().get_siblings(axes)]
    axes.set_ylim(0, 1.05 * max([top for top in tops if np.isfinite(top) and top > 0], default=1.0))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))


def length_axis(axes: Axes, longest: float, shortest: float) -> None:
    """Format the horizontal axis as tokens, on a log scale with ticks at powers of 4 (1k is 1024)."""
    powers = [4**power for power in range(16) if shortest / 2 <= 4**power <= longest * 2]
    axes.set_xscale("log", base=2)
    axes.set_xticks(powers, [short(power) for power in powers])
    axes.xaxis.set_minor_locator(NullLocator())


def no_data(axes: Axes, text: str) -> None:
    """Show a message in empty axes."""
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT)
