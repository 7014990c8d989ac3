"""The scheduling benchmark: its workloads, its verdicts on made-up runs, and what it records of a real engine."""

from collections.abc import Iterator

import pytest

from ropeswitch.loadtests.bench import scheduled
from ropeswitch.loadtests.bench.gpu_engine import write_config
from ropeswitch.loadtests.bench.scheduled import SHORT, WORKLOADS, arrivals
from ropeswitch.loadtests.bench.scheduling import OURS, Measured, answer, figures, parse, report
from ropeswitch.loadtests.bench.sides import Side


def test_first_tokens_are_pooled_and_the_rest_are_medians() -> None:
    runs = [Measured("a", False, [float(i)] * 20, gap, 2 * gap) for i, gap in enumerate((1.0, 9.0, 2.0, 1.0, 3.0))]
    assert figures(runs) == {"a": (4.0, 2.0, 4.0)}


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
    assert answer((1.0, 1.0, 10.0), {"ours": ours, "worse": (2.0, 2.0, 20.0)})[::2] == ("ours", met)


def test_the_answer_is_the_one_that_gains_most_or_else_loses_least() -> None:
    good = {"a": (0.7, 1.0, 10.0), "b": (0.5, 1.0, 10.0), "c": (0.1, 3.0, 10.0)}
    assert answer((1.0, 1.0, 10.0), good) == ("b", (0.5, 1.0, 1.0), True)
    assert answer((1.0, 1.0, 10.0), {"a": (0.7, 1.4, 10.0), "b": (0.7, 1.3, 10.0)})[::2] == ("b", False)


def test_the_report_has_figures_and_answers() -> None:
    text = report([Measured("stock", False, [1.0], 1.0, 10.0), Measured("ours", True, [0.5], 1.0, 10.0)])
    assert "| stock | 1.000 | 1.000 | 10.000 |" in text and "| stock | ours | 0.50 | 1.00 | 1.00 | yes |" in text


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_for_every_setting_and_scales_with_the_machine(name: str) -> None:
    found = arrivals(name, 8192, 5.0, seed=3)
    assert found == arrivals(name, 8192, 5.0, seed=3) != arrivals(name, 8192, 5.0, seed=4)
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert sum(each.prompt <= SHORT for each in found) >= 24
    slower = arrivals(name, 8192, 10.0, seed=3)
    assert [each.at for each in slower] == pytest.approx([2 * each.at for each in found])
    assert [each.prompt for each in slower] == [each.prompt for each in found]


@pytest.mark.parametrize("wrong", [["--prompt", "40000"], ["--rounds", "0"], ["--targets", "0.1", "0"]])
def test_options_out_of_range_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong)
    assert f"{wrong[0]}: " in capsys.readouterr().err


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_config(folder, scheduled.SHAPE)
    side = Side(scheduled.serve, str(folder), OURS)
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
