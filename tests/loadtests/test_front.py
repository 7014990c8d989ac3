"""The front of scheduling settings: percentiles, intervals and verdicts, on made-up runs and against a plain count."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.deploy.plan.gpus import load
from ropeswitch.loadtests.runs import Runs
from ropeswitch.loadtests.scheduling.front import Run, answers, complete, dominated, ratios, report, settings
from ropeswitch.loadtests.simulation import exactness, front
from ropeswitch.loadtests.simulation.cluster import make_cluster
from ropeswitch.loadtests.simulation.costs import StepCosts
from ropeswitch.loadtests.simulation.front import stock
from ropeswitch.loadtests.simulation.policies import Builder, Options, Policy
from ropeswitch.loadtests.simulation.workloads import Arrival, Workload

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


def test_every_policy_of_the_simulated_front_has_a_name_of_its_own() -> None:
    names = [str(policy) for policy in stock(2048)]
    assert len(set(names)) == len(names)
    assert names[0] == "stock default: 2048" and str(Policy("tuned", 2048, interval=4)) in names


def test_an_interrupted_front_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("THRESHOLDS", "BATCHED", "INTERVALS", "COMBINED"):
        monkeypatch.setattr(front, name, getattr(front, name)[:1])
    arguments = ["--workload", "crossing", "--requests", "2", "--longest", "8192", "--seeds", "2", "--targets", "0.1"]
    arguments += ["--out", str(tmp_path)]
    front.main(arguments)
    text = capsys.readouterr().out
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")
    assert "### crossing, 1 x A100-80GB, 2 seeds" in text and "ours, target 0.1 s, reserve" in text
    path = tmp_path / "runs.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    # Ours with and without reserve at two targets, and stock.
    assert len(lines) == 2 * (4 + len(stock(2048)))
    # Each run is only made where it is missing.
    path.write_text("\n".join(lines[1:]) + "\n", encoding="utf-8")
    front.main(arguments)
    again = path.read_text(encoding="utf-8").splitlines()
    assert sorted(again) == sorted(lines) and again[-1] == lines[0]
    assert capsys.readouterr().out == text
    options = json.loads(lines[0])["options"]
    assert Runs(path, Run, options).found and not Runs(path, Run, options | {"gpus": 2}).found


def test_a_cut_line_of_an_interrupted_front_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.jsonl").write_text('{"workload": "mi', encoding="utf-8")
    assert front.main(["--out", str(tmp_path)]) == 2
    assert "runs.jsonl, line 1: not a run (JSONDecodeError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (front, ["--gpu", "abacus"], "front: error: --gpu: 'abacus' is unknown; allowed: A100-40GB"),
        (front, ["--gpus", "3"], "front: error: --gpus: 3: TP 3: must divide the 32 query heads"),
        (
            front,
            ["--longest", "2096640"],
            "front: error: --longest: 2096640 tokens plus an answer do not fit: 1 x A100-80GB",
        ),
        (front, ["--targets", "0"], "front: error: argument --targets: '0' must be a number from 0.001 to 60"),
        (exactness, ["--model", "gpt"], "exactness: error: --model: 'gpt' is unknown"),
        (exactness, ["--gpu", "A100-80GB", "abacus"], "exactness: error: --gpu: 'abacus' is unknown"),
        (
            exactness,
            ["--requests", "1000"],
            "exactness: error: --requests: 1000 do not fit: 1 x A100-80GB hold at most 5",
        ),
    ],
)
def test_refusals(
    command: ModuleType, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    found = capsys.readouterr()
    assert found.err.startswith(message) and found.err.count("\n") == 1 and not found.out


def test_exactness_costs_its_recomputation_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert exactness.main(["--gpu", "H100-80GB", "--requests", "2"]) == 0
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| 2 ")]
    sides = {line[1]: (int(line[2]), float(line[-1])) for line in lines}
    assert [recomputed for recomputed, _ in sides.values()] == [0, 16384, 16384, 0]
    assert all(ratio <= 1.05 for _, ratio in sides.values())


def test_priorities_and_intervals_change_what_stock_schedules(tmp_path: Path) -> None:
    cluster = make_cluster("mistral-7b", load()["A100-80GB"], 1)
    builder = Builder(cluster, StepCosts(cluster), tmp_path)
    # Two long prompts and a chat wait while one request decodes; two may run.
    arrivals = (Arrival(0.0, 64, 400), Arrival(0.1, 20_000, 2), Arrival(0.2, 20_000, 2), Arrival(0.3, 100, 2))
    workload = Workload("test", "", arrivals, 2_000)

    def firsts(policy: Policy) -> list[float]:
        records = builder.simulation(policy, workload, Options()).run().records
        return [record.first_token_seconds for record in records]

    plain, priority = firsts(Policy("tuned", 2048)), firsts(Policy("tuned", 2048, priority=True))
    interval = firsts(Policy("tuned", 2048, interval=4))
    # vLLM's priorities order the queue: the chat passes the second long prompt, which did not start.
    assert priority[3] < plain[3] and priority[2] > plain[2]
    # Three steps of four decode alone.
    assert interval[1] > plain[1]
