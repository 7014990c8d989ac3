"""Results of an evaluation: rows of means, a Markdown table and the JSON file."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ropeswitch.factors.evaluate.cells import TASKS, Cell
from ropeswitch.factors.evaluate.perplexity import PERPLEXITY
from ropeswitch.factors.evaluate.run import Evaluation
from ropeswitch.factors.evaluate.statistics import Z, perplexity, standard_error, wilson

FORMAT = "ropeswitch-evaluation/1"
PACKAGES = ("ropeswitch", "torch", "transformers", "tokenizers")


@dataclass(frozen=True)
class Row:
    """A mean over all seeds.

    Attributes:
        task: Name of the task.
        length: Tokens of a window or prompt.
        set_name: Name of the set.
        value: Perplexity, or the mean score from 0 to 1.
        standard_error: Standard error of the value over documents or tries; None for a single one.
        low: Lower end of the 95% interval: 1.96 standard errors for perplexity, Wilson's for scores; None if unknown.
        high: Upper end of that interval.
        count: Documents or tries.
        tokens: Scored tokens, for perplexity.
    """

    task: str
    length: int
    set_name: str
    value: float
    standard_error: float | None
    low: float | None
    high: float | None
    count: int
    tokens: int | None = None


def rows(found: Mapping[Cell, Any]) -> list[Row]:
    """Return a row per task, length and set, over all seeds, in the order of the cells."""
    groups: dict[tuple[str, int, str], list[Any]] = {}
    for cell, result in found.items():
        groups.setdefault((cell.task, cell.length, cell.set_name), []).extend(result)
    made = [_row(*key, results) for key, results in groups.items()]
    return sorted(made, key=lambda row: TASKS.index(row.task))


def _row(task: str, length: int, set_name: str, results: list[dict[str, Any]]) -> Row:
    if task == PERPLEXITY:
        sums = [(each["nll"], each["tokens"]) for each in results]
        value, error = perplexity(sums)
        low, high = (None, None) if error is None else (value - Z * error, value + Z * error)
        tokens = sum(count for _, count in sums)
        return Row(task, length, set_name, value, error, low, high, len(results), tokens)
    scores = [each["score"] for each in results]
    value, error = sum(scores) / len(scores), standard_error(scores)
    return Row(task, length, set_name, value, error, *wilson(sum(scores), len(scores)), len(results))


def table(found: list[Row]) -> str:
    """Format rows as Markdown: a table per task, with a line per length and a column per set."""
    parts = []
    for task in dict.fromkeys(row.task for row in found):
        own = [row for row in found if row.task == task]
        sets = list(dict.fromkeys(row.set_name for row in own))
        lines = [f"| {task} | " + " | ".join(sets) + " |", "|" + "---|" * (len(sets) + 1)]
        for length in dict.fromkeys(row.length for row in own):
            at = {row.set_name: row for row in own if row.length == length}
            lines.append(f"| {length} | " + " | ".join(_told(at[name]) for name in sets) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _told(row: Row) -> str:
    if row.task == PERPLEXITY:
        return f"{row.value:.4g}" + ("" if row.standard_error is None else f" ± {row.standard_error:.2g}")
    interval = "" if row.low is None else f" ({100 * row.low:.0f} to {100 * (row.high or 0):.0f})"
    return f"{100 * row.value:.0f}%{interval}"


def to_json(evaluation: Evaluation, found: Mapping[Cell, Any], made: list[Row]) -> dict[str, Any]:
    """Return the content of the results file."""
    target = evaluation.target
    return {
        "format": FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "settings": evaluation.settings(),
        "sets": {name: target.describe_set(name) for name in evaluation.grid.sets},
        "rows": [asdict(row) for row in made],
        "cells": [{**asdict(cell), "result": result} for cell, result in found.items()],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
