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
from ropeswitch.factors.evaluate.statistics import Z, perplexity, wilson

FORMAT = "ropeswitch-evaluation/1"
PACKAGES = ("ropeswitch", "torch", "transformers", "tokenizers")


@dataclass(frozen=True)
class Row:
    """A mean over all seeds: a perplexity, or the share of pass keys found.

    ``low`` and ``high`` are its 95% interval (1.96 standard errors, or Wilson's; None if unknown), ``count`` the
    documents or tries, and ``tokens`` the scored tokens of a perplexity.
    """

    task: str
    length: int
    set_name: str
    value: float
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
        return Row(task, length, set_name, value, low, high, len(results), sum(count for _, count in sums))
    hits = sum(each["score"] for each in results)
    return Row(task, length, set_name, hits / len(results), *wilson(hits, len(results)), len(results))


def table(found: list[Row]) -> str:
    """Format rows as Markdown: a table per task, with a line per length and a column per set."""
    parts = []
    for task in dict.fromkeys(row.task for row in found):
        own = [row for row in found if row.task == task]
        sets = list(dict.fromkeys(row.set_name for row in own))
        lines = [f"| {task} | " + " | ".join(sets) + " |", "|" + "---|" * (len(sets) + 1)]
        for length in dict.fromkeys(row.length for row in own):
            at = {row.set_name: row for row in own if row.length == length}
            lines.append(f"| {length} | " + " | ".join(_cell(at[name]) for name in sets) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _cell(row: Row) -> str:
    if row.task == PERPLEXITY:
        return f"{row.value:.4g}" + ("" if row.high is None else f" ± {(row.high - row.value) / Z:.2g}")
    return f"{100 * row.value:.0f}% ({100 * (row.low or 0):.0f} to {100 * (row.high or 0):.0f})"


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
