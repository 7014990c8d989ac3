"""The search space, and how candidates are made in it: the first population, mutations and crossovers.

Factors are stored as whole hundredths, the paper's step, so that nothing drifts and equal candidates compare equal.
Functions draw only from the generator they are given. No candidate is made twice: one that was seen is redrawn up to
TRIES times, after which the space counts as exhausted and fewer candidates are made.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ropeswitch.factors.search.settings import SearchSettings

# LongRoPE, arXiv:2402.13753, table 4: the values of n-hat.
START_TOKENS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)
# Hundredths of a factor of 1.
ONE = 100
# Draws per new candidate; the published search tries the same number of crossovers.
TRIES = 20


@dataclass(frozen=True)
class Candidate:
    """A point of the space: 100 times each factor (or multiple of a base's factor), fastest first, and n-hat."""

    hundredths: tuple[int, ...]
    start_tokens: int = 0

    def factors(self, base: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return the rescale factors: the candidate's own, or its multiples of ``base``."""
        if base is None:
            return tuple(number / ONE for number in self.hundredths)
        return tuple(number * factor / ONE for number, factor in zip(self.hundredths, base, strict=True))


@dataclass(frozen=True)
class Space:
    """All candidates with ``pairs`` factors from 1 to ``upper / 100``, in steps of 0.01; if monotone, none decreases."""

    pairs: int
    upper: int
    monotone: bool = True

    def nearest(self, factors: Sequence[float]) -> Candidate:
        """Return the candidate nearest to given factors, without start tokens; if monotone, raise falling factors."""
        numbers = np.clip(np.rint(np.asarray(factors) * ONE).astype(np.int64), ONE, self.upper)
        if self.monotone:
            numbers = np.maximum.accumulate(numbers)
        return Candidate(tuple(numbers.tolist()))

    def between(self, rng: np.random.Generator, count: int, low: int, high: int) -> tuple[int, ...]:
        """Draw ``count`` hundredths uniformly from ``low`` to ``high``, sorted if monotone."""
        numbers = rng.integers(low, high, size=count, endpoint=True)
        return tuple((np.sort(numbers) if self.monotone else numbers).tolist())


def first_population(
    space: Space, settings: SearchSettings, starts: Sequence[Candidate], rng: np.random.Generator
) -> list[Candidate]:
    """Return the starts, then mutations of each in turn (arXiv:2402.13753, section 3.2)."""
    parents = list(dict.fromkeys(starts))[: settings.population]

    def mutated(number: int) -> Candidate:
        return mutation(space, parents[number % len(parents)], settings.probability, rng)

    return parents + _new(settings.population - len(parents), mutated, parents)


def next_population(
    space: Space,
    settings: SearchSettings,
    parents: Sequence[Candidate],
    seen: Collection[Candidate],
    rng: np.random.Generator,
) -> list[Candidate]:
    """Return an iteration's new candidates, none of them ``seen``: mutations, then crossovers, of random parents."""

    def mutated(_: int) -> Candidate:
        return mutation(space, parents[int(rng.integers(len(parents)))], settings.probability, rng)

    def crossed(_: int) -> Candidate:
        one, other = rng.choice(len(parents), size=2, replace=False) if len(parents) > 1 else (0, 0)
        return crossover(space, parents[int(one)], parents[int(other)], rng)

    made = _new(settings.mutations, mutated, seen)
    made += _new(settings.crossovers, crossed, {*seen, *made})
    # Similar parents may have no new children by crossover.
    return made + _new(settings.mutations + settings.crossovers - len(made), mutated, {*seen, *made})


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
    redrawn = rng.random() < probability
    return Candidate(
        tuple(numbers), START_TOKENS[int(rng.integers(len(START_TOKENS)))] if redrawn else parent.start_tokens
    )


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
