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


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines: list[Sequence[str]] = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds(value: float) -> str:
    return f"{value:.3f}"


def milliseconds(value: float) -> str:
    return f"{1000 * value:.1f}"
