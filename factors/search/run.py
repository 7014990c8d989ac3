"""One search from beginning to end: evaluate, keep what was found, tell."""

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
    """Perplexities of factor sets on the documents that it was made with.

    Attributes:
        name: Goes into the checkpoint: another evaluator's perplexities differ in their last digits.
        batch: Candidates to bring at a time.
    """

    name: str
    batch: int

    def evaluate(self, sets: Sequence[FactorSet]) -> list[float]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Files:
    """Where a search keeps what it finds.

    Attributes:
        checkpoint: What was evaluated; read if it exists.
        log: A JSON line per iteration.
        plot: A PNG.
    """

    checkpoint: Path
    log: Path
    plot: Path


@dataclass(frozen=True)
class Result:
    """The best set, the rotary base it is for, its perplexity, and the way there."""

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
    """Run a search, or go on with one that was stopped; progress is shown on standard error.

    Args:
        plan: What is searched.
        settings: How.
        evaluator: Judges candidates.
        files: What is written, after every iteration and (the checkpoint) in between.
        name: Of the set that is made.
        theta: The model's rotary base.
        about: What else the perplexities depend on, model and texts above all; a checkpoint must have the same.

    Raises:
        FactorError: when a file cannot be written, the checkpoint is another search's, or a perplexity is not finite.
        KeyboardInterrupt: after what was evaluated is kept.
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
                # All of a batch or none of it: in an engine a perplexity's last digits depend on what is beside it.
                if any(each not in checkpoint.known for each in part):
                    sets = [plan.factor_set(each, name, settings.length) for each in part]
                    scores = evaluator.evaluate(sets)
                    _check_finite(sets, scores, first_of_all=not checkpoint.known)
                    checkpoint.add(dict(zip(part, scores, strict=True)))
                # Not of all that is known: a search of more iterations may have found what this one does not look at.
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
            what = "already of position interpolation; the model's weights are broken or its dtype too narrow"
            raise FactorError(
                f"perplexity: {score} {what if first_of_all else 'of a candidate'}: factors {list(each.factors)}, "
                f"start_tokens {each.start_tokens}, scale {each.scale:g}"
            )
