"""Plots the results of an evaluation: perplexity and pass keys."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ropeswitch.factors.evaluate.passkey import PASSKEY
from ropeswitch.factors.evaluate.perplexity import PERPLEXITY
from ropeswitch.factors.evaluate.results import Row
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.whole_file import save_bytes

FORMATS = ("png", "svg")


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Plot every measured task.

    Returns:
        The written files, a PNG and an SVG per plot.

    Raises:
        FactorError: when a file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FactorError(f"--plots {str(folder)!r}: cannot be created: {error.strerror}") from error
    written = []
    for name, figure in _figures(rows):
        for kind in FORMATS:
            content = BytesIO()
            figure.savefig(content, format=kind, dpi=130)
            path = folder / f"{name}.{kind}"
            save_bytes(path, content.getvalue(), overwrite=True)
            written.append(path)
        pyplot.close(figure)
    return written


def _figures(rows: Sequence[Row]) -> Iterator[tuple[str, Any]]:
    labels = {
        PERPLEXITY: "perplexity (95% interval over documents)",
        PASSKEY: "pass keys found (95% interval)",
    }
    for task, label in labels.items():
        if own := [row for row in rows if row.task == task]:
            yield task, _lines(own, label)


def _short(tokens: int) -> str:
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)


def _errors(rows: Sequence[Row]) -> list[list[float]]:
    """Return the lengths of the error bars below and above."""
    lows = [0.0 if row.low is None else row.value - row.low for row in rows]
    highs = [0.0 if row.high is None else row.high - row.value for row in rows]
    # Wilson's interval for 0 or 1 ends there, up to rounding.
    return [[max(0.0, each) for each in lows], [max(0.0, each) for each in highs]]


def _lines(rows: Sequence[Row], label: str) -> Any:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.0, 4.2), layout="constrained")
    lengths = sorted({row.length for row in rows})
    sets = list(dict.fromkeys(row.set_name for row in rows))
    for number, set_name in enumerate(sets):
        own = [row for row in rows if row.set_name == set_name]
        # Offset the sets slightly, so that equal ones do not hide each other.
        shift = 1 + 0.02 * (number - (len(sets) - 1) / 2)
        places = [row.length * shift for row in own]
        axis.errorbar(
            places, [row.value for row in own], yerr=_errors(own), marker="o", markersize=4, capsize=3, label=set_name
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [_short(length) for length in lengths])
    axis.set_xticks([], minor=True)
    axis.set_xlabel("tokens")
    axis.set_ylabel(label)
    if rows[0].task == PERPLEXITY:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:.4g}")
        axis.yaxis.set_minor_formatter("{x:.4g}")
    else:
        axis.set_ylim(-0.03, 1.03)
    axis.grid(alpha=0.3)
    axis.legend(title="set")
    return figure
