"""The scheduling benchmark's report: its arithmetic on made-up measurements, and that a run goes on where it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.loadtests.bench.scheduling import main, parse
from ropeswitch.loadtests.runs import Runs
from ropeswitch.loadtests.scheduling import exactness
from ropeswitch.loadtests.scheduling.arrivals import SHORT, WORKLOADS, arrivals
from ropeswitch.loadtests.scheduling.front import Run
from ropeswitch.loadtests.scheduling.plots import draw
from ropeswitch.loadtests.scheduling.report import front_runs, report
from ropeswitch.loadtests.scheduling.settings import OURS, STOCK, Setting, ours, stock
from ropeswitch.loadtests.scheduling.tables import Measurement

SETTINGS = (STOCK.name, OURS.name)


def other(phase: str, setting: Setting, turn: int, **result: Any) -> Measurement:
    result = {"others": 0.0} | result
    return Measurement(phase, setting.name, setting.ours, setting.target, setting.arguments, turn, result)


def figures(text: str) -> dict[str, tuple[str, str, str]]:
    """The summary's lines: (required, measured, met) by name."""
    lines = text.split("### Required and measured")[1].strip().splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: (required, measured, met) for name, required, measured, met in rows}


def served(setting: Setting, turn: int, first: float, gap: float, long: float) -> Measurement:
    return other("front single", setting, turn, firsts=[first] * 30, gap=gap, long=long)


def test_the_front_has_the_rounds_that_every_setting_has_been_through() -> None:
    records = [served(side, turn, 1.0, 0.5, 10.0) for turn in range(3) for side in (STOCK, OURS)]
    # A target that was measured in another run.
    records.insert(0, served(ours()[1], 0, 1.0, 0.5, 10.0))
    found = front_runs(records[:-1], SETTINGS)  # interrupted before ours
    assert [(run.setting, run.seed) for run in found["single"]] == [(s.name, t) for t in (0, 1) for s in (STOCK, OURS)]
    text = report(records[:-1], SETTINGS)
    assert "### The front, single" in text and "| ours default | 1.000 | 0.500 | 10.000 |" in text
    assert "### The front" not in report(
        [*records[1:2], other("front single", OURS, 4, firsts=[1.0], gap=1, long=1)], SETTINGS
    )


def test_exactness_is_held_against_stock_with_the_same_recomputation() -> None:
    seconds = dict(zip(exactness.SIDES, (10.0, 12.0, 12.3, 11.0, 12.0, 10.0), strict=True))
    records = [
        other(
            f"exactness {name}", OURS if name.startswith("ours") else STOCK, turn,
            recomputed=8196 if "length" in name or "by itself" in name else 0,
            seconds=value, tokens=8000, long=value, gap=0.2,
        )
        for turn in range(3)
        for name, value in seconds.items()
    ]  # fmt: skip
    text = report(records, SETTINGS)
    assert "| ours, length | 8196 | 12.300 | 679 | 12.300 | 0.200 |" in text
    found = figures(text)
    length = found["all answers, ours, length / stock, and the recomputation by itself"]
    assert length == ("at most 1.05", "1.025 (1.025 to 1.025)", "yes")
    assert found["all answers, ours, reserve / stock, long set for all"] == (
        "at most 1.05",
        "1.100 (1.100 to 1.100)",
        "**no**",
    )
    assert "No round has all sides" in report(records[:2], SETTINGS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_of_the_front_is_the_same_for_every_setting_and_scales_with_the_machine(name: str) -> None:
    found = arrivals(name, 8192, 5.0, seed=3)
    assert found == arrivals(name, 8192, 5.0, seed=3) != arrivals(name, 8192, 5.0, seed=4)
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert sum(each.prompt <= SHORT for each in found) >= 24
    slower = arrivals(name, 8192, 10.0, seed=3)
    assert [each.at for each in slower] == pytest.approx([2 * each.at for each in found])
    assert [each.prompt for each in slower] == [each.prompt for each in found]


def test_other_work_beside_a_run_is_told() -> None:
    records = [served(STOCK, 0, 1.0, 0.5, 10.0), served(OURS, 0, 1.0, 0.5, 10.0)]
    name = "runs with other processes on over 5% of the cores"
    assert figures(report(records, SETTINGS))[name] == ("none", "0 of 2 (most: 0%)", "yes")
    records[0].result["others"] = 0.2
    assert figures(report(records, SETTINGS))[name] == ("none", "1 of 2 (most: 20%)", "**no**")


def test_the_long_prompt_alone_takes_the_median_of_the_rounds_ratios() -> None:
    seconds = [(10.0, 10.1), (20.0, 20.0), (10.0, 15.0)]
    records = [
        other("alone", side, i, long=pair[side.ours])
        for i, pair in enumerate(seconds)
        for side in ((STOCK, OURS) if i != 1 else (OURS, STOCK))
    ]
    records.append(other("alone", STOCK, 3, long=1.0))  # interrupted before ours
    assert figures(report(records, SETTINGS))["the long prompt alone, ours / stock, median of 3"] == (
        "at most 1.02",
        "1.010 (1.000 to 1.500)",
        "yes",
    )
    assert "No round has both sides" in report(records[-1:], SETTINGS)


def test_a_report_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="measured: at least one measurement"):
        report([], SETTINGS)


def test_every_setting_has_a_name_of_its_own() -> None:
    settings = [*stock(), *ours()]
    assert len({setting.name for setting in settings}) == len(settings)
    assert settings[0] == STOCK and OURS in settings


def test_the_front_is_drawn(tmp_path: Path) -> None:
    runs = [Run(name, name == "ours", seed, (1.0, 2.0), 0.5, 3.0) for name in ("stock", "ours") for seed in (0, 1)]
    path = draw({"single": runs, "mixed": runs}, tmp_path / "front.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_measurements_are_found_again_by_setting_round_and_options(tmp_path: Path) -> None:
    path, options = tmp_path / "measurements.jsonl", {"prompt": 8192}
    kept = Runs(path, Measurement, options)
    first = other("front single", OURS, 0, long=1.0)
    kept.add(first)
    for again in (kept, Runs(path, Measurement, options)):
        assert again.found == [first] and again.has(phase="front single", setting=OURS.name, round=0, target=None)
        assert not again.has(phase="front single", setting=OURS.name, round=1, target=None)
        assert not again.has(phase="front single", setting=OURS.name, round=0, target=0.5)
    assert Runs(path, Measurement, {"prompt": 4096}).found == []
    assert json.loads(path.read_text(encoding="utf-8"))["options"] == options


def test_what_is_measured_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No engine starts for a phase whose rounds are all there: its tables are printed at once."""
    kept = Runs(tmp_path / "measurements.jsonl", Measurement, {"prompt": 1024})
    for turn in range(5):
        for setting, long in ((STOCK, 2.0), (OURS, 2.02)):
            kept.add(other("alone", setting, turn, long=long))
    main(["--prompt", "1024", "--rounds", "1", "--only", "alone", "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert "| 5 | 2.000 | 2.020 | 1.010 |" in out and "starting" not in err


def test_a_line_that_was_cut_short_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "measurements.jsonl"
    path.write_bytes(b'{"options": {}, "ru\xff')
    with pytest.raises(SystemExit) as stopped:
        main(["--prompt", "1024", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert f"error: {path}, line 1: not a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "40000"], "--prompt: 40000 must be from 1024 to 32768"),
        (["--rounds", "0"], "--rounds: 0 must be at least 1"),
        (["--targets", "61"], "--targets: [61.0] must all be above 0 and at most 60 seconds"),
        (["--targets", "0.1", "0"], "--targets: [0.1, 0.0] must all be above 0 and at most 60 seconds"),
    ],
)
def test_options_out_of_range_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert message in capsys.readouterr().err
