"""Building blocks of the scheduling benchmark's tables: Markdown, number formats, and figures with requirements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One line of the summary; ``met`` says whether the measurement meets the requirement."""

    name: str
    required: str
    measured: str
    met: bool


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines: list[Sequence[str]] = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds(value: float) -> str:
    return f"{value:.3f}"
