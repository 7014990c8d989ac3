"""The search loop of LongRoPE (arXiv:2402.13753, algorithm 1). Reads no files and knows no model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ropeswitch.factors.search.population import first_population, next_population
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import Candidate, Space

Evaluate = Callable[[Sequence[Candidate]], Sequence[float]]


@dataclass(frozen=True)
class Scored:
    """A candidate and its perplexity."""

    candidate: Candidate
    perplexity: float


@dataclass(frozen=True)
class Iteration:
    """Result of one iteration.

    Attributes:
        number: 0 for the first population.
        fresh: Its new candidates, in order of creation.
        parents: The best candidates so far, best first.
        evaluations: Candidates evaluated so far.
    """

    number: int
    fresh: tuple[Scored, ...]
    parents: tuple[Scored, ...]
    evaluations: int

    @property
    def best(self) -> Scored:
        return self.parents[0]


def evolve(
    space: Space, settings: SearchSettings, starts: Sequence[Candidate], evaluate: Evaluate
) -> Iterator[Iteration]:
    """Search, and yield each iteration once it is evaluated.

    The draws of an iteration depend only on the seed, its number and the parents. The same perplexities therefore give the
    same search, however often it was interrupted.

    Args:
        space: The search space.
        settings: Numbers of candidates and iterations, and the seed.
        starts: Candidates of known rules, which begin the first population.
        evaluate: Returns the perplexities of candidates, in order.
    """
    seen: set[Candidate] = set()
    parents: list[Scored] = []
    for number in range(settings.iterations + 1):
        rng = np.random.default_rng([settings.seed, number])
        made = (
            next_population(space, settings, [each.candidate for each in parents], seen, rng)
            if number
            else first_population(space, settings, starts, rng)
        )
        fresh = [Scored(*pair) for pair in zip(made, evaluate(made), strict=True)]
        seen.update(made)
        # The sort is stable: among equals, the earlier candidate stays ahead.
        parents = sorted([*parents, *fresh], key=lambda each: each.perplexity)[: settings.parents]
        yield Iteration(number, tuple(fresh), tuple(parents), len(seen))
