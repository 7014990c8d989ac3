"""Building blocks of the scheduling benchmark's tables: measurements, Markdown, and figures with requirements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """One round of a phase with one engine.

    Attributes:
        phase: The phase; ``front`` and ``exactness`` are followed by the workload's or side's name.
        setting: Name of the engine's setting; ``ours``, ``target`` and ``arguments`` are those of
            :class:`~ropeswitch.loadtests.scheduling.settings.Setting`.
        round: The round, from 0.
        result: What the workload measured.
    """

    phase: str
    setting: str
    ours: bool
    target: float | None
    arguments: dict[str, Any]
    round: int
    result: dict[str, Any]


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
