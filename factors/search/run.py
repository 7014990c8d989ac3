"""Runs one search (LongRoPE, arXiv:2402.13753, algorithm 1), with a checkpoint of every candidate."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.kept import Kept
from ropeswitch.factors.search.plan import Plan
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import Candidate, Space, first_population, next_population

FORMAT = "ropeswitch-search/2"


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
    # Iterations draw only from the seed and their number, so a longer search resumes a shorter one.
    del task["iterations"]
    kept = Kept(checkpoint, task | {"format": FORMAT, "base": plan.base, "theta": theta})
    with tqdm(total=settings.evaluations, desc=name, unit="candidate", file=sys.stderr) as bar:

        def perplexity(candidate: Candidate) -> float:
            def measure() -> float:
                made = plan.factor_set(candidate, name, settings.length)
                score = evaluate(made)
                if not math.isfinite(score):
                    raise _not_finite(made, score, first_of_all=not len(kept))
                return score

            score: float = kept.get([candidate.hundredths, candidate.start_tokens], measure)
            bar.update()
            return score

        best = Scored(plan.starts[0], math.inf)
        for parents in evolve(space, settings, plan.starts, perplexity):
            best = parents[0]
            bar.set_postfix(best=f"{best.perplexity:.4f}")
    return Result(plan.factor_set(best.candidate, name, settings.length), theta, best.perplexity)


def _not_finite(made: FactorSet, score: float, *, first_of_all: bool) -> FactorError:
    what = "for position interpolation already; the model's weights are broken or its dtype is too narrow"
    return FactorError(
        f"perplexity: {score} {what if first_of_all else 'for a candidate'}: factors {list(made.factors)}, "
        f"start_tokens {made.start_tokens}, scale {made.scale:g}"
    )
