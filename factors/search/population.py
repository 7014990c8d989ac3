"""How candidates are made: the first ones, mutations and crossovers.

Every function draws from the generator it is given and from nothing else. A candidate is never made twice: what was seen
is drawn again, and after so many draws the space counts as exhausted and fewer are made.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import ONE, Candidate, Space

# Draws for one new candidate; the published search tries as many crossovers.
TRIES = 20


def first_population(
    space: Space, settings: SearchSettings, starts: Sequence[Candidate], rng: np.random.Generator
) -> list[Candidate]:
    """The starts, then mutations of them in turn (arXiv:2402.13753, section 3.2); draws where the search is random."""
    made = list(dict.fromkeys(starts))[: settings.population]
    parents = list(made)

    def make(number: int) -> Candidate:
        if settings.method == "random":
            return space.draw(rng)
        return mutation(space, parents[number % len(parents)], settings.probability, rng)

    made += _new(settings.population - len(made), make, made)
    return made


def next_population(
    space: Space,
    settings: SearchSettings,
    parents: Sequence[Candidate],
    seen: Collection[Candidate],
    rng: np.random.Generator,
) -> list[Candidate]:
    """An iteration's new candidates: mutations, then crossovers, of parents drawn uniformly.

    Args:
        space: What candidates may be.
        settings: How many of each.
        parents: The best so far.
        seen: Every candidate made before.
        rng: What is drawn from.
    """

    def mutated(_: int) -> Candidate:
        return mutation(space, parents[int(rng.integers(len(parents)))], settings.probability, rng)

    def crossed(_: int) -> Candidate:
        one, other = rng.choice(len(parents), size=2, replace=False) if len(parents) > 1 else (0, 0)
        return crossover(space, parents[int(one)], parents[int(other)], rng)

    count = settings.mutations + settings.crossovers
    if settings.method == "random":
        return _new(count, lambda _: space.draw(rng), seen)
    made = _new(settings.mutations, mutated, seen)
    made += _new(settings.crossovers, crossed, {*seen, *made})
    # Parents that are alike have no new children by crossover.
    made += _new(count - len(made), mutated, {*seen, *made})
    return made


def mutation(space: Space, parent: Candidate, probability: float, rng: np.random.Generator) -> Candidate:
    """The parent with each component drawn anew with the given probability.

    Neighbours that are drawn together get sorted draws between the two that stay around them, which is how independent
    draws are distributed given that the factors do not fall.
    """
    numbers = list(parent.hundredths)
    drawn = rng.random(space.pairs) < probability
    for first, end in _runs(drawn):
        low = numbers[first - 1] if space.monotone and first else ONE
        high = numbers[end] if space.monotone and end < space.pairs else space.upper
        numbers[first:end] = space.between(rng, end - first, low, high)
    start = space.draw_start(rng) if rng.random() < probability else parent.start_tokens
    return Candidate(tuple(numbers), start)


def crossover(space: Space, one: Candidate, other: Candidate, rng: np.random.Generator) -> Candidate:
    """Each component from either parent; where factors may not fall they are sorted, and each stays between its parents'."""
    picks = rng.random(space.pairs) < 0.5
    numbers = [a if pick else b for a, b, pick in zip(one.hundredths, other.hundredths, picks, strict=True)]
    start = one.start_tokens if rng.random() < 0.5 else other.start_tokens
    return Candidate(tuple(sorted(numbers) if space.monotone else numbers), start)


def _new(count: int, make: Callable[[int], Candidate], seen: Collection[Candidate]) -> list[Candidate]:
    known, made = set(seen), list[Candidate]()
    for number in range(count):
        for _ in range(TRIES):
            candidate = make(number)
            if candidate not in known:
                known.add(candidate)
                made.append(candidate)
                break
    return made


def _runs(chosen: Sequence[bool] | np.ndarray) -> Iterator[tuple[int, int]]:
    """First and end of each run of neighbours that are chosen."""
    first = 0
    while first < len(chosen):
        end = first
        while end < len(chosen) and chosen[end]:
            end += 1
        if end > first:
            yield first, end
        first = end + 1
