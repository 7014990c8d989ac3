"""The scheduling benchmark: its workloads, and its verdicts on made-up runs."""

import pytest

from ropeswitch.loadtests.bench.scheduled import SHORT, WORKLOADS, arrivals
from ropeswitch.loadtests.bench.scheduling import Measured, answer, figures, report


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
