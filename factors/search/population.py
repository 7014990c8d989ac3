"""Makes candidates: the first population, mutations and crossovers.

Functions draw only from the generator they are given. No candidate is made twice: one that was seen is redrawn up to
TRIES times, after which the space counts as exhausted and fewer candidates are made.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import ONE, Candidate, Space

# Draws per new candidate; the published search tries the same number of crossovers.
TRIES = 20


def first_population(
    space: Space, settings: SearchSettings, starts: Sequence[Candidate], rng: np.random.Generator
) -> list[Candidate]:
    """Return the starts, then mutations of each in turn (arXiv:2402.13753, section 3.2), or random draws by method."""
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
    """Return an iteration's new candidates: mutations, then crossovers, of uniformly drawn parents.

    Args:
        space: The search space.
        settings: Numbers of mutations and crossovers.
        parents: The best candidates so far.
        seen: All earlier candidates.
        rng: Random generator to draw from.
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
    # Similar parents may have no new children by crossover.
    made += _new(count - len(made), mutated, {*seen, *made})
    return made


def mutation(space: Space, parent: Candidate, probability: float, rng: np.random.Generator) -> Candidate:
    """Return the parent with each component redrawn with the given probability.

    Neighbours that are redrawn together get sorted draws between the fixed ones around them. That is the distribution of
    independent draws, given that factors do not decrease.
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
    """Take each component from either parent; if monotone, sort them, so each stays between the parents' values."""
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
    """Yield the first index and the end of each run of chosen neighbours."""
    first = 0
    while first < len(chosen):
        end = first
        while end < len(chosen) and chosen[end]:
            end += 1
        if end > first:
            yield first, end
        first = end + 1
