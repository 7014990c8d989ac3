"""Runs one search (LongRoPE, arXiv:2402.13753, algorithm 1), with a checkpoint that is always complete."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.files import object_from_json, read_text, save_text
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.search.plan import Plan
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import Candidate, Space, first_population, next_population

FORMAT = "ropeswitch-search/1"
# Seconds between two writes of the checkpoint: the most work that is lost when a search is killed.
SECONDS = 2.0


@dataclass(frozen=True)
class Scored:
    """A candidate and its perplexity."""

    candidate: Candidate
    perplexity: float


@dataclass(frozen=True)
class Result:
    """The best set, its rotary base and its perplexity."""

    factor_set: FactorSet
    theta: float
    perplexity: float


def evolve(
    space: Space, settings: SearchSettings, starts: Sequence[Candidate], evaluate: Callable[[Candidate], float]
) -> Iterator[tuple[Scored, ...]]:
    """Search, and yield the best candidates so far, best first, after each population; the first begins with ``starts``.

    The draws of an iteration depend only on the seed, its number and the parents. The same perplexities therefore give the
    same search, however often it was interrupted.
    """
    seen: set[Candidate] = set()
    parents: list[Scored] = []
    for number in range(settings.iterations + 1):
        rng = np.random.default_rng([settings.seed, number])
        if number:
            made = next_population(space, settings, [each.candidate for each in parents], seen, rng)
        else:
            made = first_population(space, settings, starts, rng)
        seen.update(made)
        # The sort is stable: among equals, the earlier candidate stays ahead.
        scored = [*parents, *(Scored(each, evaluate(each)) for each in made)]
        parents = sorted(scored, key=lambda each: each.perplexity)[: settings.parents]
        yield tuple(parents)


class Checkpoint:
    """The perplexities of a search, by candidate, in order of evaluation.

    The search itself is not stored. It is replayed from its seed with these perplexities, so it ends like an uninterrupted
    one.
    """

    def __init__(self, path: Path, task: Mapping[str, Any]) -> None:
        """Read the file at ``path``, or create it; a FactorError names what is wrong with it.

        ``task`` is everything that perplexities or the course of the search depend on, as plain JSON values.
        """
        self.path, self._task = path, json.loads(json.dumps(task))
        self.known: dict[Candidate, float] = {}
        if self.path.exists():
            try:
                self._read()
            except FactorError as error:
                raise FactorError(f"checkpoint {str(path)!r}: {error}") from error
        else:
            # Fail now rather than after the first hour if the folder is not writable.
            self.save()
        self._saved = time.monotonic()

    def add(self, candidate: Candidate, perplexity: float) -> None:
        """Add a perplexity; write the file if the last write was more than SECONDS ago."""
        self.known[candidate] = perplexity
        if time.monotonic() - self._saved > SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file; when that fails, the previous one stays unchanged."""
        evaluated = [[each.hundredths, each.start_tokens, score] for each, score in self.known.items()]
        content = {"format": FORMAT, "task": self._task, "evaluated": evaluated}
        save_text(self.path, json.dumps(content) + "\n", overwrite=True)
        self._saved = time.monotonic()

    def _read(self) -> None:
        content = object_from_json(read_text(self.path))
        task = content.get("task")
        if content.get("format") != FORMAT or not isinstance(task, dict):
            raise FactorError(f"format: {quoted(content.get('format'))}; this version reads {FORMAT!r} with a task")
        # Iterations draw only from the seed and their number, so a longer search resumes a shorter one.
        for name in sorted({*task, *self._task} - {"iterations"}):
            there, here = task.get(name), self._task.get(name)
            if there != here:
                raise FactorError(
                    f"{name}: it was made with {quoted(there)}, but this search has {quoted(here)}; remove the file to "
                    "start over, or use another output"
                )
        try:
            for hundredths, start_tokens, score in content["evaluated"]:
                self.known[Candidate(tuple(map(int, hundredths)), int(start_tokens))] = float(score)
        except (KeyError, TypeError, ValueError) as error:
            raise FactorError(f"evaluated: must be a list of candidates: {error}") from error


def search(
    plan: Plan,
    settings: SearchSettings,
    evaluate: Callable[[FactorSet], float],
    checkpoint: Path,
    *,
    name: str,
    theta: float,
    about: dict[str, Any],
) -> Result:
    """Run a search, or resume a stopped one from its checkpoint; shows progress on standard error.

    ``evaluate`` returns the perplexity under a factor set; ``about`` are facts that it depends on, such as model and texts,
    which a checkpoint must match. ``name`` and ``theta`` are the new set's name and the model's rotary base. The results so
    far are saved when the search is interrupted or fails.
    """
    space = plan.space
    task = about | asdict(settings) | {"pairs": space.pairs, "upper": space.upper, "scale": plan.scale}
    kept = Checkpoint(checkpoint, task | {"base": plan.base, "theta": theta})
    with tqdm(total=settings.evaluations, desc=name, unit="candidate", file=sys.stderr) as bar:

        def perplexity(candidate: Candidate) -> float:
            if candidate not in kept.known:
                made = plan.factor_set(candidate, name, settings.length)
                score = evaluate(made)
                if not math.isfinite(score):
                    raise _not_finite(made, score, first_of_all=not kept.known)
                kept.add(candidate, score)
            bar.update()
            return kept.known[candidate]

        best = Scored(plan.starts[0], math.inf)
        try:
            for parents in evolve(space, settings, plan.starts, perplexity):
                best = parents[0]
                bar.set_postfix(best=f"{best.perplexity:.4f}")
        finally:
            kept.save()
    return Result(plan.factor_set(best.candidate, name, settings.length), theta, best.perplexity)


def _not_finite(made: FactorSet, score: float, *, first_of_all: bool) -> FactorError:
    what = "for position interpolation already; the model's weights are broken or its dtype is too narrow"
    return FactorError(
        f"perplexity: {score} {what if first_of_all else 'for a candidate'}: factors {list(made.factors)}, "
        f"start_tokens {made.start_tokens}, scale {made.scale:g}"
    )
