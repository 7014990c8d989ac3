"""The space and what is drawn from it: bounds, step, order, and the same draws for the same seed."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import (
    ONE,
    START_TOKENS,
    Candidate,
    Space,
    crossover,
    first_population,
    mutation,
    next_population,
)

seeds = st.integers(min_value=0, max_value=2**32 - 1)
spaces = st.builds(Space, pairs=st.integers(1, 24), upper=st.integers(101, 64000), monotone=st.booleans())


@st.composite
def spaces_with_candidates(draw: st.DrawFn, count: int = 2) -> tuple[Space, list[Candidate]]:
    space, rng = draw(spaces), np.random.default_rng(draw(seeds))
    return space, [Candidate(space.between(rng, space.pairs, ONE, space.upper), 8 * n) for n in range(count)]


def contains(space: Space, candidate: Candidate) -> bool:
    numbers = list(candidate.hundredths)
    inside = len(numbers) == space.pairs and all(ONE <= number <= space.upper for number in numbers)
    return inside and (not space.monotone or numbers == sorted(numbers)) and candidate.start_tokens in START_TOKENS


# LLaMA2-7B's published lists (microsoft/LongRoPE, ft_la2_256k.csv and 2048k_la2_256k.csv): pairs 0 to 5, 32 and 63.
FINE_TUNED_256K = (1.02, 1.03, 1.05, 1.05, 1.05, 1.05, 30.53, 64.77)
SECOND_2048K = (1.1118, 1.1433, 1.1865, 1.1865, 1.1865, 1.218, 119.067, 575.8053)


def test_the_published_second_search_is_a_candidate() -> None:
    """Hundredths of the factors that the model was fine-tuned with, rising, up to 1.25 times the ratio of the lengths."""
    candidate = Candidate((109, 111, 113, 113, 113, 116, 390, 889))
    assert contains(Space(pairs=8, upper=1000), candidate)
    np.testing.assert_allclose(candidate.factors(FINE_TUNED_256K), SECOND_2048K, rtol=1e-6)
    # The paper's values of n-hat.
    assert START_TOKENS == (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)


@settings(max_examples=40)
@given(spaces_with_candidates(), seeds, st.floats(0.05, 1.0))
def test_everything_made_is_in_the_space(case: tuple[Space, list[Candidate]], seed: int, probability: float) -> None:
    space, (one, other) = case
    rng = np.random.default_rng(seed)
    mutated, crossed = mutation(space, one, probability, rng), crossover(space, one, other, rng)
    assert all(contains(space, each) for each in (mutated, crossed))
    for number, a, b in zip(crossed.hundredths, one.hundredths, other.hundredths, strict=True):
        assert min(a, b) <= number <= max(a, b)
    assert crossed.start_tokens in (one.start_tokens, other.start_tokens)


@settings(max_examples=40)
@given(spaces, st.lists(st.floats(0.1, 900), min_size=24, max_size=24))
def test_the_nearest_candidate_is_in_the_space(space: Space, factors: list[float]) -> None:
    assert contains(space, space.nearest(factors[: space.pairs]))


def test_mutations_leave_what_all_factors_have_alike() -> None:
    """PI's factors are one number; mutations of it reach from 1 to the end, and fewer and fewer stay alike."""
    space = Space(pairs=4, upper=500)
    made = [mutation(space, space.nearest((4.0,) * 4), 0.3, np.random.default_rng(n)) for n in range(1000)]
    lowest = np.min([each.hundredths for each in made], axis=0)
    highest = np.max([each.hundredths for each in made], axis=0)
    assert lowest[0] <= 105 and lowest[2] < 300 and highest[-1] >= 495 and highest[1] > 400
    assert {each.start_tokens for each in made} == set(START_TOKENS)


def test_mutated_neighbours_are_distributed_as_rejected_draws() -> None:
    """Drawing all components anew gives what uniform draws, kept where they do not fall, give."""
    space = Space(pairs=3, upper=1100)
    direct = np.array(
        [mutation(space, space.nearest((2.0,) * 3), 1.0, np.random.default_rng(n)).hundredths for n in range(2000)]
    )
    plain = np.random.default_rng(0).integers(100, 1100, size=(24000, 3), endpoint=True)
    kept = plain[(np.diff(plain, axis=1) >= 0).all(axis=1)]
    np.testing.assert_allclose(direct.mean(axis=0), kept.mean(axis=0), rtol=0.06)
    np.testing.assert_allclose(direct.std(axis=0), kept.std(axis=0), rtol=0.07)


@settings(max_examples=40)
@given(spaces, seeds)
def test_populations_have_no_twins_and_are_the_seed_s(space: Space, seed: int) -> None:
    numbers = SearchSettings(64, population=12, mutations=5, crossovers=5, parents=6)
    starts = [space.nearest((1.0,) * space.pairs), space.nearest((3.0,) * space.pairs)]

    def both() -> tuple[list[Candidate], list[Candidate]]:
        first = first_population(space, numbers, starts, np.random.default_rng(seed))
        return first, next_population(space, numbers, first[:6], set(first), np.random.default_rng(seed + 1))

    first, fresh = both()
    assert (first, fresh) == both()
    assert first[: len(set(starts))] == list(dict.fromkeys(starts))
    assert len({*first, *fresh}) == len(first) + len(fresh)
    assert len(first) <= 12 and len(fresh) <= 10
    if space.pairs > 4 and space.upper > 500:
        assert (len(first), len(fresh)) == (12, 10)


def test_crossover_takes_half_of_each_parent() -> None:
    space = Space(pairs=40, upper=1000)
    low, high = Candidate((150,) * 40, 0), Candidate((700,) * 40, 8)
    children = [crossover(space, low, high, np.random.default_rng(seed)) for seed in range(200)]
    shares = [sum(number == 700 for number in child.hundredths) / 40 for child in children]
    assert abs(np.mean(shares) - 0.5) < 0.03 and min(shares) > 0.1 and max(shares) < 0.9
    assert 60 < sum(child.start_tokens == 8 for child in children) < 140


def test_the_first_population_is_mutations_of_each_start() -> None:
    """About 0.3 of their components are new."""
    space = Space(pairs=40, upper=1000, monotone=False)
    starts = [Candidate((100 + 200 * number,) * 40) for number in range(3)]
    found = first_population(space, SearchSettings(4096, population=63), starts, np.random.default_rng(1))
    for number, child in enumerate(found[3:]):
        kept = sum(value == starts[number % 3].hundredths[0] for value in child.hundredths) / 40
        assert 0.4 < kept < 0.95
