"""The tables of models/README.md, from the results of `ropeswitch.models.miniature.experiments`."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t, standard errors to either end of a 95% interval, for 1, 2, ... degrees of freedom."""
Z = 1.960


def t_quantile(freedom: int) -> float:
    """For more than are listed: the first terms of the expansion in 1 / freedom (Abramowitz and Stegun, 26.7.5)."""
    if freedom <= len(T):
        return T[freedom - 1]
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)


@dataclass(frozen=True)
class Results:
    """Several results files of ``ropeswitch factors eval`` as one.

    Attributes:
        rows: Means, as their files have them.
        cells: Every document and try.
    """

    rows: tuple[dict[str, Any], ...]
    cells: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "Results":
        files = [json.loads(path.read_text()) for path in paths]
        return cls(
            tuple(row for each in files for row in each["rows"]), tuple(c for each in files for c in each["cells"])
        )

    @staticmethod
    def published(text: str) -> str:
        """A results file as it is kept: on one line, and of each document its name, its tokens and their loss to 1e-6."""
        content = json.loads(text)
        for cell in content["cells"]:
            if cell["task"] == "perplexity":
                cell["result"] = [
                    {"document": each["document"], "tokens": each["tokens"], "nll": round(each["nll"], 6)}
                    for each in cell["result"]
                ]
        return json.dumps(content, separators=(",", ":")) + "\n"

    def lengths(self, task: str) -> list[int]:
        return sorted({row["length"] for row in self.rows if row["task"] == task})

    def losses(self, length: int, set_name: str) -> list[float]:
        """Mean negative log-likelihood in nats of each document, of all seeds, in the same order for every set."""
        own = [c for c in self.cells if (c["task"], c["length"], c["set_name"]) == ("perplexity", length, set_name)]
        documents = [each for cell in sorted(own, key=lambda cell: cell["seed"]) for each in cell["result"]]
        return [each["nll"] / each["tokens"] for each in documents]


@dataclass(frozen=True)
class Ratio:
    """How one set's perplexity compares with another's on the same documents.

    Attributes:
        value: Their ratio, from the mean difference of losses.
        low: Lower end of its 95% interval, from the differences of single documents.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        """From paired losses in nats; at least two documents.

        Raises:
            ValueError: when they are not pairs, or fewer than two.
        """
        if len(ours) != len(theirs) or len(ours) < 2:
            raise ValueError(f"{len(ours)} and {len(theirs)} documents; give the same two or more to both sets")
        differences = [one - other for one, other in zip(ours, theirs, strict=True)]
        mean = fmean(differences)
        error = t_quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
        return cls(*(math.exp(each) for each in (mean, mean - error, mean + error)))

    @property
    def verdict(self) -> str:
        if self.high < 1:
            return "yes"
        return "no, the other way round" if self.low > 1 else "not beyond the error bars"


def table(results: Results, task: str, sets: Sequence[str]) -> str:
    """Markdown: a line for each length, a column for each set, with standard errors or 95% intervals."""
    lines = [f"| tokens | {' | '.join(sets)} |", "|" + " --: |" * (len(sets) + 1)]
    for length in results.lengths(task):
        at = {row["set_name"]: row for row in results.rows if (row["task"], row["length"]) == (task, length)}
        lines.append(f"| {length:,} | " + " | ".join(_told(at.get(name)) for name in sets) + " |")
    return "\n".join(lines) + "\n"


def comparison(results: Results, pairs: Iterable[tuple[int, str, str]]) -> str:
    """Markdown: for each (length, set, other set) the ratio of their perplexities and whether the first is better."""
    lines = ["| tokens | set | against | ratio of perplexities (95%) | better |", "| --: | --- | --- | --- | --- |"]
    for length, ours, theirs in pairs:
        ratio = Ratio.of(results.losses(length, ours), results.losses(length, theirs))
        told = f"{ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f})"
        lines.append(f"| {length:,} | {ours} | {theirs} | {told} | {ratio.verdict} |")
    return "\n".join(lines) + "\n"


def _told(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if row["task"] == "perplexity":
        error = row["standard_error"]
        return f"{row['value']:.3f}" + ("" if error is None else f" ± {error:.3f}")
    return f"{100 * row['value']:.0f}% ({100 * row['low']:.0f} to {100 * row['high']:.0f})"
