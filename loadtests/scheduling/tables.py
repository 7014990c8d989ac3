"""Parts of the scheduling benchmark's tables: Markdown, numbers, and figures held against what is required."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One line of the summary; ``met`` is None where there is nothing to hold the measurement against."""

    name: str
    required: str
    measured: str
    met: bool | None


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def least(name: str, required: float, ratios: Sequence[float | None]) -> Figure:
    """The lowest ratio must reach the required one; a completion time that ours never reaches does not."""
    known = [ratio for ratio in ratios if ratio is not None]
    missing = len(ratios) - len(known)
    measured = f"{min(known):.2f}" if known else "none"
    measured += f", {missing} not reached" if missing else ""
    return Figure(name, f"at least {required:g}", measured, bool(known) and not missing and min(known) >= required)


def ratio(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.2f}"


def seconds(value: float) -> str:
    return f"{value:.3f}"


def milliseconds(value: float) -> str:
    return f"{1000 * value:.1f}"
