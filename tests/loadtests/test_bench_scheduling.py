"""The scheduling benchmark: its workloads, its verdicts on made-up runs, and what it records of a real engine."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.loadtests.bench.engine import make_checkpoint
from ropeswitch.loadtests.bench.front import Measured, answers, dominated, ratios, summaries
from ropeswitch.loadtests.bench.scheduled import (
    HEADS,
    INTERMEDIATE,
    LAYERS,
    MAXIMUM,
    SHORT,
    WINDOW,
    WORKLOADS,
    arrivals,
    serve,
)
from ropeswitch.loadtests.bench.scheduling import OURS, SETTINGS, parse, report
from ropeswitch.loadtests.bench.sides import Side

SEEDS = range(5)


def runs(name: str, first: float, gap: float, long: float, spread: Sequence[float] = (1, 1, 1, 1, 1)) -> list[Measured]:
    """Five seeds of one setting; ``spread`` multiplies each seed's figures."""
    return [
        Measured(name, name.startswith("ours"), seed, (first * x,) * 20, gap * x, long * x)
        for seed, x in zip(SEEDS, spread, strict=True)
    ]


@given(st.lists(st.lists(st.floats(0.001, 100), min_size=1, max_size=30), min_size=1, max_size=6))
def test_first_tokens_are_pooled_and_ranked(firsts: list[list[float]]) -> None:
    [found] = summaries(Measured("a", False, i, tuple(each), 1.0, 1.0) for i, each in enumerate(firsts))
    pooled = sorted(x for each in firsts for x in each)
    assert sum(x <= found.figures[0] for x in pooled) >= 0.99 * len(pooled)
    assert sum(x < found.figures[0] for x in pooled) < 0.99 * len(pooled)
    # A draw may leave seeds out; it adds none.
    assert set(found.draws[:, 0]) <= set(pooled)


def test_gap_and_completion_are_medians_of_the_seeds() -> None:
    [found] = summaries(runs("a", 1.0, 2.0, 3.0, (1, 9, 2, 1, 3)))
    assert found.figures == (9.0, 4.0, 6.0)


def test_noise_that_all_settings_share_widens_no_ratio() -> None:
    spread = (1, 2, 4, 3, 5)
    one, other = summaries([*runs("ours", 1.0, 1.0, 1.0, spread), *runs("stock", 2.0, 2.0, 2.0, spread)])
    for ratio in ratios(one, other):
        assert (ratio.value, ratio.low, ratio.high) == (0.5, 0.5, 0.5)


def test_a_setting_that_is_worse_in_all_is_dominated() -> None:
    better, worse = runs("stock", 1.0, 1.0, 10.0), runs("ours", 1.5, 1.0, 10.0)
    assert [each[:2] for each in dominated(summaries([*better, *worse]))] == [("ours", "stock")]
    # Equal is not worse, and neither is worse in one and better in another.
    assert not dominated(summaries([*better, *runs("ours", 1.0, 1.0, 10.0)]))
    assert not dominated(summaries([*better, *runs("ours", 1.5, 0.9, 10.0)]))
    # As good as the other allows: within 1.02.
    assert dominated(summaries([*better, *runs("ours", 1.5, 0.99, 10.0)]))
    # Nor what chance can do.
    spread = (0.8, 1.5, 0.9, 1.1, 1.6)
    chance = [Measured("ours", True, seed, (1.0,) * 20, x, 10 * x) for seed, x in zip(SEEDS, spread, strict=True)]
    assert all(ratio.value >= 1 for ratio in ratios(*summaries([*chance, *better])))
    assert not dominated(summaries([*better, *chance]))


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
    [answer] = answers(summaries([*runs("stock", 1.0, 1.0, 10.0), *runs("ours", *ours)]))
    assert (answer.stock, answer.ours, answer.met) == ("stock", "ours", met)


def test_the_answer_is_the_one_that_gains_most_or_else_loses_least() -> None:
    base = runs("stock", 1.0, 1.0, 10.0)
    good = [*runs("ours a", 0.7, 1.0, 10.0), *runs("ours b", 0.5, 1.0, 10.0), *runs("ours c", 0.1, 3.0, 10.0)]
    assert [(each.ours, each.met) for each in answers(summaries([*base, *good]))] == [("ours b", True)]
    bad = [*runs("ours a", 0.7, 1.4, 10.0), *runs("ours b", 0.7, 1.3, 10.0)]
    assert [(each.ours, each.met) for each in answers(summaries([*base, *bad]))] == [("ours b", False)]


def test_the_report_has_both_verdicts() -> None:
    text = report([*runs("stock", 1.0, 1.0, 10.0), *runs("ours", 1.5, 1.0, 10.0), *runs("ours b", 0.5, 1.0, 10.0)])
    assert "Our settings that one of stock's dominates: 1" in text
    assert "Stock's settings that one of ours answers: 1 of 1." in text
    assert "| stock | ours b | 0.50 (0.50 to 0.50) | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | yes |" in text


def test_settings_that_ran_other_seeds_are_refused() -> None:
    found = [*runs("stock", 1, 1, 1), *runs("ours", 1, 1, 1)[:3]]
    with pytest.raises(ValueError, match=r"ours ran seeds \[0, 1, 2\], not \[0, 1, 2, 3, 4\]"):
        summaries(found)
    with pytest.raises(ValueError, match="ours, seed 7: no short request"):
        summaries([Measured("ours", True, 7, (), 1.0, 1.0)])


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_for_every_setting_and_scales_with_the_machine(name: str) -> None:
    found = arrivals(name, 8192, 5.0, seed=3)
    assert found == arrivals(name, 8192, 5.0, seed=3) != arrivals(name, 8192, 5.0, seed=4)
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert sum(each.prompt <= SHORT for each in found) >= 24
    slower = arrivals(name, 8192, 10.0, seed=3)
    assert [each.at for each in slower] == pytest.approx([2 * each.at for each in found])
    assert [each.prompt for each in slower] == [each.prompt for each in found]


def test_every_setting_has_a_name_of_its_own() -> None:
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "40000"], "--prompt: 40000 must be from 1024 to 32768"),
        (["--rounds", "0"], "--rounds: 0 must be at least 1"),
        (["--targets", "0.1", "0"], "--targets: [0.1, 0.0] must all be above 0 and at most 60 seconds"),
    ],
)
def test_options_out_of_range_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(folder, layers=LAYERS, heads=HEADS, intermediate=INTERMEDIATE, window=WINDOW, maximum=MAXIMUM)
    side = Side(serve, str(folder), OURS)
    yield side
    side.stop()


@pytest.mark.full
@pytest.mark.parametrize("name", [*WORKLOADS, "alone"])
def test_a_workload_is_answered_whole(side: Side, name: str) -> None:
    result = side.ask({"name": name, "prompt": 1024, "alone": 0.2, "seed": 0})
    if name == "alone":
        assert (result["firsts"], result["tokens"], result["gap"]) == ([], 1025, 0.0)
        return
    wanted = arrivals(name, 1024, 0.2, seed=0)
    assert len(result["firsts"]) == sum(each.prompt <= SHORT for each in wanted)
    assert result["tokens"] == sum(each.prompt + each.output for each in wanted)
    assert 0 < result["gap"] < result["seconds"] and 0 < result["long"] < result["seconds"]
