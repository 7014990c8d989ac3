"""The loop: its numbers are the paper's, selection finds what is planted, and seeds decide everything else."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.search.evolution import Iteration, evolve
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import Candidate, Space

SPACE = Space(pairs=16, upper=1000)
# As found ones look: the fast pairs hardly change, the slow ones by about the ratio of the lengths.
PLANTED = SPACE.nearest([1, 1.02, 1.05, 1.1, 1.2, 1.4, 2.2, 3.9, 5.2, 6.1, 6.9, 7.4, 7.7, 7.9, 8, 8])
STARTS = [SPACE.nearest((8.0,) * 16), SPACE.nearest([8 ** (i / 15) for i in range(16)])]
SETTINGS = SearchSettings(4096, iterations=12)
WHOLE = SearchSettings(4096)


def distance(candidates: Sequence[Candidate]) -> list[float]:
    """Lower towards a planted optimum, as a perplexity would be."""
    away = [np.subtract(each.hundredths, PLANTED.hundredths) / 100 for each in candidates]
    return [float(1 + np.square(each).mean()) for each in away]


def run(settings: SearchSettings, evaluate: Callable[[Sequence[Candidate]], list[float]] = distance) -> list[Iteration]:
    return list(evolve(SPACE, settings, STARTS, evaluate))


def test_the_paper_s_numbers() -> None:
    """arXiv:2402.13753, section 4.1: 64, 16, 16, p = 0.3, 32 parents, 40 iterations, halved above 512k."""
    paper = SearchSettings.paper(256 * 1024)
    assert (paper.population, paper.mutations, paper.crossovers, paper.parents) == (64, 16, 16, 32)
    assert (paper.probability, paper.iterations, paper.documents, paper.monotone) == (0.3, 40, 5, True)
    long = SearchSettings.paper(2048 * 1024)
    assert (long.population, long.mutations, long.crossovers, long.parents) == (32, 8, 8, 32)
    assert (long.probability, long.iterations, long.documents) == (0.3, 40, 3)
    assert SearchSettings.paper(512 * 1024) == replace(paper, length=512 * 1024)
    assert SearchSettings.paper(4096, "needle").documents == 10
    assert SearchSettings.paper(4096, population=40, seed=None).population == 40
    # No more parents than there are candidates, unless they are asked for.
    assert [SearchSettings.paper(4096, population=n).parents for n in (16, 32, 64)] == [16, 32, 32]
    with pytest.raises(FactorError, match="parents: 32 must not exceed population"):
        SearchSettings.paper(4096, population=16, parents=32)


def test_every_iteration_evaluates_what_was_asked_for() -> None:
    brought: list[Candidate] = []

    def counting(candidates: Sequence[Candidate]) -> list[float]:
        brought.extend(candidates)
        return distance(candidates)

    iterations = run(SETTINGS, counting)
    assert [len(each.fresh) for each in iterations] == [64] + [32] * 12
    assert len(brought) == len(set(brought)) == SETTINGS.evaluations == iterations[-1].evaluations
    assert [each.number for each in iterations] == list(range(13))
    best = [each.best.perplexity for each in iterations]
    assert best == sorted(best, reverse=True) and best[-1] == min(distance(brought))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full)])
def test_selection_finds_what_is_planted(seed: int) -> None:
    """Far better than as many uniform draws of the same space, beginning with the same starts."""
    found = run(replace(WHOLE, seed=seed))[-1].best.perplexity
    drawn = run(replace(WHOLE, seed=seed, method="random"))[-1].best.perplexity
    assert found - 1 < 0.4 * (drawn - 1)


def test_the_seed_decides() -> None:
    assert run(SETTINGS) == run(SETTINGS)
    assert run(SETTINGS)[-1].best != run(replace(SETTINGS, seed=1))[-1].best


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"population": 2}, "population: 2 must be a whole number of at least 3"),
        ({"parents": 65}, "parents: 65 must not exceed population"),
        ({"probability": 0.0}, "probability: 0.0 must be above 0 and at most 1"),
        ({"mutations": 0, "crossovers": 0}, "mutations: 0, and so are crossovers"),
        ({"method": "annealing"}, "method: 'annealing' must be one of evolution, random"),
        ({"tokens_judged": 4096}, "tokens_judged: 4096 must be from 1 to length - 1, 4095"),
        ({"objective": "needle", "tokens_judged": 1}, "tokens_judged: 1 applies to objective 'perplexity' only"),
        ({"seed": -1}, "seed: -1 must be a whole number of at least 0"),
    ],
)
def test_numbers_that_no_search_can_have(changes: dict[str, object], message: str) -> None:
    with pytest.raises(FactorError, match=f"^{message}"):
        replace(SETTINGS, **changes)  # type: ignore[arg-type]
