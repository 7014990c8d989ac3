"""Compares scheduler settings: three figures per run, their intervals, and two verdicts.

The figures are the time to first token of short requests, the worst gap in an answer, and the time until long prompts are
complete. Every setting runs the same seeds, so all settings share one set of resampled seeds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

FIGURES = ("p99 first token", "worst gap", "long prompts done")
# A ratio up to SAME counts as equal; one up to CHANCE does too if its interval reaches down to 1.
SAME, CHANCE = 1.02, 1.1
# Maximum ratio to another setting's figure that counts as 20% better.
BETTER = 0.8
DRAWS, SEED = 2000, 0


@dataclass(frozen=True)
class Measured:
    """One setting's run of a workload with one seed.

    Attributes:
        setting: The setting's name.
        ours: Whether the scheduler is ropeswitch's.
        seed: The workload's seed.
        firsts: Seconds to the first token of every short request.
        gap: Longest wait between two tokens of a request, in seconds.
        long: Mean seconds from a long prompt's arrival until it is complete.
    """

    setting: str
    ours: bool
    seed: int
    firsts: Sequence[float]
    gap: float
    long: float


@dataclass(frozen=True)
class Summary:
    """A setting's figures, in the order of :data:`FIGURES`: of all seeds, and (:data:`DRAWS`, 3) of resampled seeds."""

    name: str
    ours: bool
    figures: tuple[float, float, float]
    draws: "np.ndarray"


@dataclass(frozen=True)
class Ratio:
    """A figure of one setting over another's, and the ends of its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def as_good(self) -> bool:
        """Whether the first setting is not worse: within :data:`SAME`, or within :data:`CHANCE` and the interval."""
        return self.value <= SAME or (self.value <= CHANCE and self.low <= 1)

    @property
    def better(self) -> bool:
        """Whether the first setting is at least 20% better, and the whole interval is below 1."""
        return self.value <= BETTER and self.high < 1

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Answer:
    """The best of our settings against one of stock's.

    Attributes:
        stock: Stock's setting.
        ours: Our setting that is as good in all figures and gains most in one. If there is none, the one that loses least,
            preferably among those that are 20% better in one figure.
        ratios: Ours over stock's, by figure.
        met: Whether ours is as good in all figures and 20% better in one; see :class:`Ratio`.
    """

    stock: str
    ours: str
    ratios: tuple[Ratio, ...]
    met: bool


def summaries(runs: Iterable[Measured]) -> list[Summary]:
    """Return every setting's figures: the 99th percentile over all short requests, medians of the rest.

    Raises:
        ValueError: if two settings ran different seeds, or a run has no short request.
    """
    grouped: dict[str, dict[int, Measured]] = {}
    for run in runs:
        if not run.firsts:
            raise ValueError(f"{run.setting}, seed {run.seed}: no short request")
        grouped.setdefault(run.setting, {})[run.seed] = run
    seeds = sorted(next(iter(grouped.values()), {}))
    for name, found in grouped.items():
        if sorted(found) != seeds:
            raise ValueError(f"{name} ran seeds {sorted(found)}, not {seeds}")
    drawn = np.random.default_rng(SEED).integers(0, max(len(seeds), 1), (DRAWS, len(seeds)))
    return [_summary(name, [found[seed] for seed in seeds], drawn) for name, found in grouped.items()]


def _summary(name: str, runs: Sequence[Measured], drawn: "np.ndarray") -> Summary:
    rest = np.array([(run.gap, run.long) for run in runs])
    firsts = np.concatenate([run.firsts for run in runs])
    order, owner = (
        np.sort(firsts),
        np.repeat(np.arange(len(runs)), [len(run.firsts) for run in runs])[np.argsort(firsts)],
    )
    draws = np.empty((len(drawn), 3))
    draws[:, 1:] = np.median(rest[drawn], axis=1)
    for i, seeds in enumerate(drawn):
        # Each request counts as often as its seed was drawn.
        times = np.bincount(seeds, minlength=len(runs))[owner].cumsum()
        draws[i, 0] = order[np.searchsorted(times, ceil(0.99 * times[-1]))]
    gap, long = np.median(rest, axis=0)
    figures = (float(order[ceil(0.99 * len(order)) - 1]), float(gap), float(long))
    return Summary(name, runs[0].ours, figures, draws)


def ratios(one: Summary, other: Summary) -> tuple[Ratio, ...]:
    """Return one setting's figures over another's."""
    low, high = np.percentile(one.draws / other.draws, (2.5, 97.5), axis=0)
    values = [a / b for a, b in zip(one.figures, other.figures, strict=True)]
    return tuple(Ratio(*map(float, each)) for each in zip(values, low, high, strict=True))


def dominated(found: Sequence[Summary]) -> list[tuple[str, str, tuple[Ratio, ...]]]:
    """Find our settings that one of stock's matches in every figure and beats in one, with the interval above 1.

    Returns:
        Our setting, stock's, and ours over stock's by figure.
    """
    return [
        (ours.name, stock.name, found_ratios)
        for ours in found
        if ours.ours
        for stock in found
        if not stock.ours
        for found_ratios in [ratios(ours, stock)]
        if all(each.as_good for each in ratios(stock, ours)) and any(each.low > 1 for each in found_ratios)
    ]


def answers(found: Sequence[Summary]) -> list[Answer]:
    """Return our best answer to each of stock's settings."""
    ours = [each for each in found if each.ours]
    return [_answer(stock, ours) for stock in found if not stock.ours and ours]


def _answer(stock: Summary, ours: Sequence[Summary]) -> Answer:
    compared = [(each.name, ratios(each, stock)) for each in ours]
    good = [each for each in compared if all(ratio.as_good for ratio in each[1])]
    if good:
        name, best = min(good, key=lambda each: min(ratio.value for ratio in each[1]))
        return Answer(stock.name, name, best, any(ratio.better for ratio in best))
    better = [each for each in compared if any(ratio.better for ratio in each[1])]
    name, best = min(better or compared, key=lambda each: max(ratio.value for ratio in each[1]))
    return Answer(stock.name, name, best, False)
