"""The loop of the search: LongRoPE, arXiv:2402.13753, algorithm 1. Pure: it reads no files and knows no model."""

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
    """What one iteration found.

    Attributes:
        number: 0 for the first population.
        fresh: Its new candidates, in the order they were made.
        parents: The best of all so far, the best first.
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
    """Search, and yield each iteration when it is evaluated.

    What is drawn in an iteration depends on the seed, its number and the parents alone: the same perplexities give the same
    search, however often it was interrupted.

    Args:
        space: What candidates may be.
        settings: How many, how often, and the seed.
        starts: Candidates of known rules, which the first population begins with.
        evaluate: Perplexities of candidates, in order.
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
        # The sort is stable: of equals the earlier stays ahead.
        parents = sorted([*parents, *fresh], key=lambda each: each.perplexity)[: settings.parents]
        yield Iteration(number, tuple(fresh), tuple(parents), len(seen))
