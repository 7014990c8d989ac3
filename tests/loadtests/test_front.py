"""The front of scheduling settings: percentiles, intervals and verdicts, on made-up runs and against a plain count."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.loadtests.scheduling.front import Run, answers, complete, dominated, ratios, report, settings

SEEDS = range(5)


def runs(name: str, first: float, gap: float, long: float, spread: Sequence[float] = (1, 1, 1, 1, 1)) -> list[Run]:
    """Five seeds of one setting; ``spread`` multiplies each seed's figures."""
    return [
        Run(name, name.startswith("ours"), seed, (first * x,) * 20, gap * x, long * x)
        for seed, x in zip(SEEDS, spread, strict=True)
    ]


@given(st.lists(st.lists(st.floats(0.001, 100), min_size=1, max_size=30), min_size=1, max_size=6))
def test_first_tokens_are_pooled_and_ranked(firsts: list[list[float]]) -> None:
    [found] = settings(Run("a", False, i, tuple(each), 1.0, 1.0) for i, each in enumerate(firsts))
    pooled = sorted(x for each in firsts for x in each)
    assert sum(x <= found.figures[0] for x in pooled) >= 0.99 * len(pooled)
    assert sum(x < found.figures[0] for x in pooled) < 0.99 * len(pooled)
    # A draw may leave seeds out; it adds none.
    assert set(found.draws[:, 0]) <= set(pooled)


def test_gap_and_completion_are_medians_of_the_seeds() -> None:
    [found] = settings(runs("a", 1.0, 2.0, 3.0, (1, 9, 2, 1, 3)))
    assert found.figures == (9.0, 4.0, 6.0)


def test_noise_that_all_settings_share_widens_no_ratio() -> None:
    spread = (1, 2, 4, 3, 5)
    one, other = settings([*runs("ours", 1.0, 1.0, 1.0, spread), *runs("stock", 2.0, 2.0, 2.0, spread)])
    for ratio in ratios(one, other):
        assert (ratio.value, ratio.low, ratio.high) == (0.5, 0.5, 0.5)


def test_a_setting_that_is_worse_in_all_is_dominated() -> None:
    better, worse = runs("stock", 1.0, 1.0, 10.0), runs("ours", 1.5, 1.0, 10.0)
    assert [each[:2] for each in dominated(settings([*better, *worse]))] == [("ours", "stock")]
    # Equal is not worse, and neither is worse in one and better in another.
    assert not dominated(settings([*better, *runs("ours", 1.0, 1.0, 10.0)]))
    assert not dominated(settings([*better, *runs("ours", 1.5, 0.9, 10.0)]))
    # As good as the other allows: within 1.02.
    assert dominated(settings([*better, *runs("ours", 1.5, 0.99, 10.0)]))
    # Nor what chance can do.
    spread = (0.8, 1.5, 0.9, 1.1, 1.6)
    chance = [Run("ours", True, seed, (1.0,) * 20, x, 10 * x) for seed, x in zip(SEEDS, spread, strict=True)]
    assert all(ratio.value >= 1 for ratio in ratios(*settings([*chance, *better])))
    assert not dominated(settings([*better, *chance]))


@pytest.mark.parametrize(
    ("ours", "met"),
    [
        ((0.8, 1.0, 10.0), True),
        ((0.81, 1.0, 10.0), False),  # no gain of a fifth
        ((0.1, 1.0, 10.1), True),  # within 1.02
        ((0.1, 1.0, 10.5), False),  # the long prompt later
    ],
)
def test_a_setting_is_answered_by_one_as_good_in_all_and_better_in_one(ours: tuple[float, ...], met: bool) -> None:
    [answer] = answers(settings([*runs("stock", 1.0, 1.0, 10.0), *runs("ours", *ours)]))
    assert (answer.stock, answer.ours, answer.met) == ("stock", "ours", met)


def test_the_answer_is_the_one_that_gains_most_or_else_loses_least() -> None:
    base = runs("stock", 1.0, 1.0, 10.0)
    good = [*runs("ours a", 0.7, 1.0, 10.0), *runs("ours b", 0.5, 1.0, 10.0), *runs("ours c", 0.1, 3.0, 10.0)]
    assert [(each.ours, each.met) for each in answers(settings([*base, *good]))] == [("ours b", True)]
    bad = [*runs("ours a", 0.7, 1.4, 10.0), *runs("ours b", 0.7, 1.3, 10.0)]
    assert [(each.ours, each.met) for each in answers(settings([*base, *bad]))] == [("ours b", False)]


def test_the_report_has_both_verdicts() -> None:
    text = report([*runs("stock", 1.0, 1.0, 10.0), *runs("ours", 1.5, 1.0, 10.0), *runs("ours b", 0.5, 1.0, 10.0)])
    assert "Our settings that one of stock's dominates: 1" in text
    assert "Stock's settings that one of ours answers: 1 of 1." in text
    assert "| stock | ours b | 0.50 (0.50 to 0.50) | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | yes |" in text


def test_settings_that_ran_other_seeds_are_refused_or_left_out() -> None:
    found = [*runs("stock", 1, 1, 1), *runs("ours", 1, 1, 1)[:3]]
    with pytest.raises(ValueError, match=r"ours ran seeds \[0, 1, 2\], not \[0, 1, 2, 3, 4\]"):
        settings(found)
    assert {run.seed for run in complete(found, ("stock", "ours"))} == {0, 1, 2}
    assert complete(found, ("stock",)) == found[:5]
    assert not complete(found, ("stock", "ours", "not run yet"))
    with pytest.raises(ValueError, match="ours, seed 7: no short request"):
        settings([Run("ours", True, 7, (), 1.0, 1.0)])
