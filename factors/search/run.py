"""Runs one search from beginning to end: evaluates, saves checkpoints, writes log and plot."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.search.checkpoint import Checkpoint
from ropeswitch.factors.search.evolution import Iteration, evolve
from ropeswitch.factors.search.plan import Plan
from ropeswitch.factors.search.report import save_log, save_plot
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import Candidate


class Evaluator(Protocol):
    """Computes perplexities of factor sets on fixed documents.

    Attributes:
        name: Recorded in the checkpoint, because perplexities of different evaluators differ in their last digits.
        batch: Candidates to evaluate per call.
    """

    name: str
    batch: int

    def evaluate(self, sets: Sequence[FactorSet]) -> list[float]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Files:
    """Output files of a search.

    Attributes:
        checkpoint: Evaluated candidates; read if it exists.
        log: A JSON line per iteration.
        plot: A PNG.
    """

    checkpoint: Path
    log: Path
    plot: Path


@dataclass(frozen=True)
class Result:
    """The best set, its rotary base, its perplexity, and all iterations."""

    factor_set: FactorSet
    theta: float
    perplexity: float
    iterations: tuple[Iteration, ...]


def search(
    plan: Plan,
    settings: SearchSettings,
    evaluator: Evaluator,
    files: Files,
    *,
    name: str,
    theta: float,
    about: dict[str, Any],
) -> Result:
    """Run a search, or resume a stopped one; shows progress on standard error.

    Args:
        plan: Space, starts and base of the search.
        settings: Settings of the search.
        evaluator: Evaluates candidates.
        files: Files to write: all after every iteration, the checkpoint also in between.
        name: Name of the new set.
        theta: The model's rotary base.
        about: Other facts that perplexities depend on, such as model and texts; a checkpoint must match them.

    Raises:
        FactorError: when a file cannot be written, the checkpoint belongs to another search, or a perplexity is not finite.
        KeyboardInterrupt: after the results so far are saved.
    """
    space = plan.space
    task = about | settings.to_json() | {"evaluator": evaluator.name, "batch": evaluator.batch}
    task |= {"pairs": space.pairs, "upper": space.upper, "scale": plan.scale, "base": plan.base, "theta": theta}
    checkpoint = Checkpoint(files.checkpoint, task)
    iterations: list[Iteration] = []
    brought: list[float] = []
    with tqdm(total=settings.evaluations, desc=name, unit="candidate", file=sys.stderr) as bar:

        def evaluate(candidates: Sequence[Candidate]) -> list[float]:
            for first in range(0, len(candidates), evaluator.batch):
                part = candidates[first : first + evaluator.batch]
                # Evaluate whole batches only: an engine's last digits depend on the other requests in the batch.
                if any(each not in checkpoint.known for each in part):
                    sets = [plan.factor_set(each, name, settings.length) for each in part]
                    scores = evaluator.evaluate(sets)
                    _check_finite(sets, scores, first_of_all=not checkpoint.known)
                    checkpoint.add(dict(zip(part, scores, strict=True)))
                # Not of all known candidates: a longer search may have found ones that this search never tries.
                brought.append(min(checkpoint.known[each] for each in part))
                bar.update(len(part))
                bar.set_postfix(best=f"{min(brought):.4f}", refresh=False)
            return [checkpoint.known[each] for each in candidates]

        try:
            for iteration in evolve(space, settings, plan.starts, evaluate):
                iterations.append(iteration)
                save_log(files.log, plan, iterations)
        finally:
            checkpoint.save()
    best = iterations[-1].best
    title = f"{name}: {settings.method}, {iterations[-1].evaluations} candidates, best {best.perplexity:.4f}"
    save_plot(files.plot, plan, iterations, title)
    return Result(plan.factor_set(best.candidate, name, settings.length), theta, best.perplexity, tuple(iterations))


def _check_finite(sets: Sequence[FactorSet], scores: Sequence[float], *, first_of_all: bool) -> None:
    for each, score in zip(sets, scores, strict=True):
        if not math.isfinite(score):
            what = "for position interpolation already; the model's weights are broken or its dtype is too narrow"
            raise FactorError(
                f"perplexity: {score} {what if first_of_all else 'for a candidate'}: factors {list(each.factors)}, "
                f"start_tokens {each.start_tokens}, scale {each.scale:g}"
            )
