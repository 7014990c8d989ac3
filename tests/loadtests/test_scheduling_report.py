"""The scheduling benchmark's report: its arithmetic on made-up measurements, and that a run goes on where it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.loadtests.bench_scheduling import parse
from ropeswitch.loadtests.scheduling.curves import Point, best, lowest_at, nearest_rank, points, undominated, value_at
from ropeswitch.loadtests.scheduling.measurements import Measurements
from ropeswitch.loadtests.scheduling.mixed import compare
from ropeswitch.loadtests.scheduling.plots import draw
from ropeswitch.loadtests.scheduling.report import report
from ropeswitch.loadtests.scheduling.settings import CROSSING, CROSSING_UNCACHED, OURS, STOCK, Setting, ours, tuned


def point(setting: str, long: float, p99: float, gap: float = 1.0, throughput: float = 1000.0) -> Point:
    return Point(setting, setting.startswith("ours"), 1, 10, long, p99, gap, throughput)


def mixed(phase: str, setting: Setting, turn: int, long: float, ttfts: list[float], gap: float) -> dict[str, Any]:
    result = {"long": long, "ttfts": ttfts, "worst_gap": gap, "tokens": 30000, "seconds": long + 1, "others": 0.0}
    return {"phase": phase, "setting": setting.name, "ours": setting.ours, "round": turn, "result": result}


def other(phase: str, setting: Setting, turn: int, **result: Any) -> dict[str, Any]:
    result = {"others": 0.0} | result
    return {"phase": phase, "setting": setting.name, "ours": setting.ours, "round": turn, "result": result}


def figures(text: str) -> dict[str, tuple[str, str, str]]:
    """The summary's lines: (required, measured, met) by name."""
    lines = text.split("### Required and measured")[1].strip().splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: (required, measured, met) for name, required, measured, met in rows}


def full_rounds() -> list[dict[str, Any]]:
    """One round: stock 10 s, a tuned setting 14 s, ours at 12 s and 16 s, with 250 short requests each."""
    threshold, slow = tuned()[0], ours()[1]
    return [
        mixed("rounds", STOCK, 0, 10.0, [9.0] * 250, 1.5),
        mixed("rounds", threshold, 0, 14.0, [0.6] * 250, 0.3),
        mixed("rounds", OURS, 0, 12.0, [0.17] * 250, 0.1),
        mixed("rounds", slow, 0, 16.0, [0.07] * 250, 0.05),
    ]


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (99, 99), (100, 99), (101, 100), (200, 198), (201, 199)])
def test_nearest_rank(count: int, rank: int) -> None:
    assert nearest_rank([float(i) for i in range(count, 0, -1)], 99) == rank


def test_nearest_rank_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="values: at least one"):
        nearest_rank([], 99)


def test_points_pool_latencies_and_take_medians_of_the_rest() -> None:
    runs = [(10.0, [0.1, 0.2], 0.5), (30.0, [0.3], 0.1), (20.0, [0.4], 0.2)]
    [found] = points(mixed("rounds", STOCK, i, *run) for i, run in enumerate(runs))
    assert (found.setting, found.ours, found.runs, found.shorts) == ("stock default", False, 3, 4)
    assert (found.long, found.p99, found.gap) == (20.0, 0.4, 0.2)
    assert found.throughput == pytest.approx(30000 / 21)


def test_dominated_points_are_dropped_and_equal_ones_kept() -> None:
    a, b = point("a", 10, 1.0), point("b", 10, 1.0)
    slower, worse_gap, other = point("c", 11, 1.0), point("d", 10, 1.0, gap=2.0), point("e", 12, 0.5)
    assert undominated([a, b, slower, worse_gap, other]) == [a, b, other]


def test_the_best_are_the_undominated_ones_with_the_lowest_p99() -> None:
    front = [point(str(i), 10.0 + i, 1.0 - i / 10) for i in range(6)]
    dominated = point("dominated", 20.0, 0.55)
    assert [p.setting for p in best([dominated, *front])] == ["5", "4", "3"]


def test_the_best_are_filled_up_where_few_are_undominated() -> None:
    found = [point("front", 10, 1.0), point("high", 12, 3.0), point("low", 12, 2.0)]
    assert [p.setting for p in best(found, 2)] == ["front", "low"]
    assert len(best(found[:1])) == 1


@pytest.mark.parametrize(
    ("long", "expected"),
    [(9.0, None), (9.9, 4.0), (10.0, 4.0), (11.0, 3.0), (12.0, 2.0), (15.0, 1.5), (18.0, 1.0), (30.0, 1.0)],
)
def test_the_lowest_value_at_a_completion_time(long: float, expected: float | None) -> None:
    # The point at 14 s is worse than the one at 12 s, and not used.
    curve = [point("x", 18, 1.0), point("y", 10, 4.0), point("z", 14, 9.0), point("w", 12, 2.0)]
    assert lowest_at(curve, long, lambda p: p.p99) == expected


def test_a_value_that_may_rise_uses_every_point() -> None:
    curve = [point("x", 10, 1.0, throughput=900), point("y", 20, 1.0, throughput=1100)]
    assert value_at(curve, 15, lambda p: p.throughput) == 1000
    assert value_at([], 15, lambda p: p.throughput) is None


def test_stock_is_compared_at_its_own_completion_time() -> None:
    curve = [point("ours a", 12, 0.2, 0.10, 1200), point("ours b", 16, 0.1, 0.05, 1000)]
    found = compare([point("stock default", 10, 9), point("threshold 64", 14, 0.6, 0.3, 1000), *curve])
    [only] = found
    assert only.stock.setting == "threshold 64"
    assert only.p99 == pytest.approx(4) and only.gap == pytest.approx(4) and only.throughput == pytest.approx(1.1)


def test_the_rounds_figures() -> None:
    found = figures(report(full_rounds()))
    assert found["p99, stock's default / our default"] == ("at least 50", "52.94", "yes")
    assert found["p99, best stock settings / ours at the same time"] == ("at least 3", "5.00", "yes")
    assert found["worst gap, best stock settings / ours at the same time"] == ("at least 1.8", "4.00", "yes")
    assert found["short requests per setting"] == ("at least 200", "250", "yes")
    assert found["runs beside which other work took over 5% of the cores"] == ("none", "0 of 4 (most: 0%)", "yes")


def test_what_is_missed_says_no() -> None:
    records = full_rounds()
    records[2]["result"]["ttfts"] = [0.5] * 100
    records[0]["result"]["others"] = 0.2
    found = figures(report(records))
    assert found["p99, stock's default / our default"][1:] == ("18.00", "**no**")
    assert found["p99, best stock settings / ours at the same time"][1:] == ("2.11", "**no**")
    assert found["short requests per setting"][1:] == ("100", "**no**")
    assert found["runs beside which other work took over 5% of the cores"][1:] == ("1 of 4 (most: 20%)", "**no**")


def test_a_completion_time_that_ours_does_not_reach_is_a_miss() -> None:
    first, second = tuned()[:2]
    records = [mixed("sweep", first, 0, 14.0, [0.6], 0.3), mixed("sweep", second, 0, 11.0, [0.9], 0.5)]
    records.append(mixed("sweep", OURS, 0, 12.0, [0.1], 0.1))
    text = report(records)
    name = "p99, every tuned stock setting / ours at the same time"
    assert figures(text)[name] == ("at least 1", "6.00, 1 not reached", "**no**")
    assert text.count("not reached") == 3 + 2


def test_the_long_prompt_alone_takes_the_median_of_the_rounds_ratios() -> None:
    seconds = [(10.0, 10.1), (20.0, 20.0), (10.0, 15.0)]
    records = [
        other("alone", side, i, long=pair[side.ours])
        for i, pair in enumerate(seconds)
        for side in ((STOCK, OURS) if i != 1 else (OURS, STOCK))
    ]
    records.append(other("alone", STOCK, 3, long=1.0))  # interrupted before ours
    assert figures(report(records))["the long prompt alone, ours / stock, median of 3"] == (
        "at most 1.02",
        "1.010 (1.000 to 1.500)",
        "yes",
    )
    assert "No round has both sides" in report(records[-1:])


def test_the_crossing_shows_where_its_worst_gaps_are_and_what_the_machine_adds() -> None:
    gaps = [0.010] * 1000
    gaps[100], gaps[593], gaps[900] = 0.02, 0.03, 0.04
    disturbed = [*gaps[:700], 0.06, *gaps[701:]]
    stalled = [0.010] * 592 + [2.5] + [0.010] * 407
    level = [0.010, 0.015, 0.010]
    records = [
        other("crossing", CROSSING, 0, gaps=gaps, switch=592, other=[0.01, 0.05], level=level),
        other("crossing", CROSSING, 1, gaps=disturbed, switch=592, other=[0.01, 0.05], level=[0.010, 0.07, 0.010]),
        other("crossing", CROSSING, 2, gaps=gaps, switch=592, other=[0.01, 0.05], level=level),
        other("crossing", CROSSING_UNCACHED, 0, gaps=stalled, switch=592, other=[0.01, 2.4], level=level),
        *full_rounds(),
    ]
    text = report(records)
    expected = "| ours | 3 | 10.0 | 20.0 | 30.0 | 60.0 | 4.0 (4.0 to 6.0) | 4.0 | 1.5 (1.5 to 7.0) | 50.0 |"
    assert expected in text
    stall = "| 250.0 (250.0 to 250.0) | 250.0 | 1.5 (1.5 to 1.5) | 2400.0 |"
    assert "| ours, no prefix cache | 1 | 10.0 | 10.0 | 2500.0 | 10.0 " + stall in text
    found = figures(text)
    assert found["a crossing request's worst gap / its median gap, worst round"] == ("at most 5", "6.00", "**no**")
    assert found["the same, median of the rounds"] == ("at most 5", "4.00", "yes")
    assert found["the same, each gap its median of the rounds"] == ("at most 5", "4.00", "yes")
    assert found["another request's worst gap beside it / beside a long prompt"] == ("at most 1", "0.50", "yes")


@pytest.mark.parametrize(
    ("bound", "required", "met"),
    [(None, "its stated bound", ""), (12, "at most 12 s", "yes"), (3, "at most 3 s", "**no**")],
)
def test_the_burst_is_held_against_its_bound(bound: float | None, required: str, met: str) -> None:
    records = [other("burst", STOCK, 0, long=9.0, ttfts=[9.1, 9.2])]
    records += [other("burst", OURS, i, long=11.0 + i / 2, ttfts=[0.1, 0.2 + i]) for i in range(2)]
    text = report(records, bound)
    assert "| ours default | 2 | 1.200 | 11.500 |" in text
    assert figures(text)["the burst's longest wait with ours"] == (required, "11.500 s", met)


def test_a_report_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="records: at least one measurement"):
        report([])


def test_every_setting_has_a_name_of_its_own_and_a_place_in_the_plots(tmp_path: Path) -> None:
    settings = [STOCK, *tuned(), *ours()]
    assert len({setting.name for setting in settings}) == len(settings) == 20
    records = [mixed("sweep", setting, 0, 10.0 + i, [1.0], 0.5) for i, setting in enumerate(settings)]
    paths = draw(records, tmp_path)
    assert [path.name for path in paths] == ["p99.png", "gap.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_measurements_are_found_again_by_setting_round_and_options(tmp_path: Path) -> None:
    path, options = tmp_path / "measurements.jsonl", {"prompt": 24576, "rate": 5.0, "mode": "eager"}
    kept = Measurements(path, options)
    assert kept.records == [] and not kept.has("rounds", OURS, 0)
    kept.add("rounds", OURS, 0, {"long": 1.0})
    for again in (kept, Measurements(path, options)):
        assert again.has("rounds", OURS, 0)
        assert not again.has("rounds", OURS, 1) and not again.has("sweep", OURS, 0)
        assert not again.has("rounds", STOCK, 0)
        assert not again.has("rounds", Setting(OURS.name, ours=True, target=0.5), 0)
    assert Measurements(path, options | {"prompt": 4096}).records == []
    assert json.loads(path.read_text(encoding="utf-8"))["options"] == options


def test_a_line_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    Measurements(path, {}).add("alone", STOCK, 0, {"long": 1.0})
    path.write_text(path.read_text(encoding="utf-8") + '{"phase": "al', encoding="utf-8")
    with pytest.raises(ValueError, match=r"measurements\.jsonl, line 2: not a measurement"):
        Measurements(path, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "40000"], "--prompt: 40000 is not between 1024 and 32768"),
        (["--rate", "0"], "--rate: 0.0 is not above 0"),
        (["--rounds", "-1"], "--rounds: -1 is not above 0"),
        (["--retries", "-1"], "--retries: -1 is below 0"),
        (["--targets", "0.1", "0"], "--targets: [0.1, 0.0] are not all above 0 seconds"),
    ],
)
def test_options_out_of_range_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert message in capsys.readouterr().err
