"""Workload files, and the distributions and arrivals in them."""

import copy
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client import pieces as texts
from ropeswitch.loadtests.client import workload
from ropeswitch.loadtests.client.lengths import Length, draw
from ropeswitch.loadtests.client.plan import Bounds, due_times, plan, read_trace
from ropeswitch.loadtests.client.workload import Arrival, parse
from tests.loadtests.client.commands import SMALL

BOUNDS = Bounds(least=30, longest=None, max_model_len=None, limits=(256, 8192), scale=1.0, keys=64)


def drawn(content: Any, count: int = 4000, scale: float = 1.0, limits: tuple[int, ...] = ()) -> np.ndarray:
    random, parsed = np.random.default_rng(1), Length.model_validate(content)
    return np.array([draw(parsed, random, scale, limits) for _ in range(count)])


@pytest.mark.parametrize("name", workload.shipped("workload"))
def test_shipped_workloads_are_right_and_named_as_their_files(name: str) -> None:
    found = workload.load(name)
    assert found.name == name and found.about
    assert plan(found, 50, 0, BOUNDS)
    texts.load(found.text)


def test_the_issue_of_the_shipped_workloads() -> None:
    assert {"chat", "documents", "mixed", "crossing", "soak"} <= workload.shipped("workload").keys()
    longest = max(each.prompt_tokens for each in plan(workload.load("heavy"), 2000, 0, BOUNDS))
    assert 1_000_000 < longest <= 2_000_000
    mixed = plan(workload.load("mixed"), 100, 0, BOUNDS)
    assert sum(each.prompt_tokens == 1 << 20 for each in mixed) == 3


def part(**changes: Any) -> list[dict[str, Any]]:
    return [{**SMALL["mix"][0], **changes}]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"arival": {}}, "file.yaml: arival: unknown key"),
        ({"arrival": ...}, "arrival: Field required"),
        ({"arrival": {"poisson": {"rate": 1}, "closed": {"concurrency": 1}}}, "arrival: give exactly one of poisson, gamma"),
        ({"arrival": {"poisson": {"rate": 0}}}, "arrival.poisson.rate: Input should be greater than 0"),
        ({"requests": ...}, "requests is missing: a closed loop needs a number of prompts"),
        ({"requests": ..., "arrival": {"poisson": {"rate": 1}}}, "requests or seconds is missing"),
        ({"mix": []}, "mix: at least one part is needed"),
        ({"mix": part(prompt={"lognorml": {}})}, "mix.0.prompt: must be a number of tokens, or a mapping with one of"),
        ({"mix": part(prompt={"lognormal": {"median": 5, "mx": 9}})}, "mix.0.prompt.lognormal.mx: unknown key"),
        ({"mix": part(prompt="8q")}, "mix.0.prompt.fixed: '8q' must be a number of tokens such as 700, 8k"),
        ({"mix": part(prompt={"uniform": {"min": 9, "max": 8}})}, "mix.0.prompt.uniform: min (9) must not be above max (8)"),
        ({"mix": part(prompt={"uniform": None})}, "mix.0.prompt: uniform has no value"),
        ({"mix": part(form="ids")}, "mix: chat: form ids needs endpoint: completions"),
        ({"mix": part(cancel={"share": 2})}, "mix.0.cancel.share: Input should be less than or equal to 1"),
        ({"mix": [*part(), *part()]}, "two parts have the same kind"),
        ({"mix": part(count=7)}, "the counts of its parts add up to more than requests (6)"),
        ({"mix": [{"kind": "a", "output": 5}]}, "mix: a: prompt and output are needed"),
        ({"mix": part(stream=False, cancel={"share": 1})}, "mix: chat: cancel needs stream: true"),
        ({"slo": ["ttft<a"]}, "objective 'ttft<a' must be one of ttft, tpot, e2el"),
        ({"bands": "0-8k,4k-"}, "bands 0-8k and 4k- overlap"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_with_its_key(changes: Any, expected: str) -> None:
    content = {**copy.deepcopy(SMALL), **changes}
    with pytest.raises(UsageError) as error:
        parse({key: value for key, value in content.items() if value is not ...}, "file.yaml")
    assert expected in str(error.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_a_file_holds_is_a_workload_or_a_usage_error(content: Any) -> None:
    for key in ("name", "arrival", "mix", "slo", "bands"):
        with suppress(UsageError):
            parse({**copy.deepcopy(SMALL), key: content}, "file")


def test_the_same_values_come_back_from_yaml() -> None:
    for name in workload.shipped("workload"):
        found = workload.load(name)
        assert parse(yaml.safe_load(yaml.safe_dump(found.model_dump(mode="json", exclude_none=True))), name) == found


def test_lengths_follow_their_distributions() -> None:
    assert set(drawn("2k")) == {2048} and set(drawn(1000, scale=0.1)) == {100}
    uniform = drawn({"uniform": {"min": 10, "max": 20}})
    assert set(uniform) == set(range(10, 21))
    lognormal = drawn({"lognormal": {"median": 500, "sigma": 1.0, "min": 1, "max": 1000000}})
    assert np.median(lognormal) == pytest.approx(500, rel=0.1)
    assert np.std(np.log(lognormal)) == pytest.approx(1.0, rel=0.05)
    clipped = drawn({"lognormal": {"median": 500, "sigma": 1.0, "min": 300, "max": 900}})
    assert (clipped.min(), clipped.max()) == (300, 900)
    pareto = drawn({"pareto": {"min": 100, "max": 2000000, "shape": 0.75}}, 20000)
    assert (pareto >= 100).all() and (pareto <= 2000000).all()
    # P(longer than n) of the whole distribution; what is cut off is below 0.1 % of it.
    for tokens in (1000, 10000, 100000):
        assert (pareto > tokens).mean() == pytest.approx((100 / tokens) ** 0.75, rel=0.3)


def test_crossing_prompts_end_just_before_a_limit() -> None:
    found = drawn({"crossing": {"within": 16}}, limits=(256, 8192))
    assert set(found) == set(range(241, 257)) | set(range(8177, 8193))
    assert set(drawn({"crossing": {"at": 1000, "within": 2}})) == {999, 1000}
    with pytest.raises(UsageError, match="/v1/rope lists no switch of factor sets"):
        drawn({"crossing": {"within": 16}})
    assert set(drawn({"crossing": {"at": 1000, "within": 20}}, scale=0.1)) == {99, 100}


def test_poisson_arrivals_are_those_of_upstream() -> None:
    """Upstream's generator sleeps; its times, which it scales in the same way, have the same mean and spread."""
    arrival = Arrival.model_validate({"poisson": {"rate": 3}})
    due = due_times(arrival, 20.0, 4000, 5)
    assert due[-1] == pytest.approx(200.0)
    gaps = np.diff(due)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.01)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.06)
    assert (gaps > 0.05).mean() == pytest.approx(np.exp(-1), rel=0.1)
    assert (due_times(arrival, 20.0, 4000, 5) == due).all()


def test_gamma_arrivals_have_their_burstiness() -> None:
    for burstiness in (0.25, 4.0):
        arrival = Arrival.model_validate({"gamma": {"rate": 3, "burstiness": burstiness}})
        gaps = np.diff(due_times(arrival, 20.0, 4000, 5))
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)
    # Very bursty ones are all at once.
    arrival = Arrival.model_validate({"gamma": {"rate": 5, "burstiness": 1e-300}})
    assert set(due_times(arrival, 5.0, 6, 0)) == {0.0}


def test_bursts_come_together() -> None:
    due = due_times(Arrival.model_validate({"bursts": {"rate": 4, "size": 8}}), 4.0, 20, 0)
    assert due.tolist() == [0.0] * 8 + [2.0] * 8 + [4.0] * 4


def test_a_plan_is_of_its_mix() -> None:
    found = plan(parse({**SMALL, "requests": 3000, "mix": [
        {"kind": "a", "share": 3, "prompt": 100, "output": 5}, {"kind": "b", "share": 1, "prompt": 200, "output": 5},
        {"kind": "c", "count": 3, "prompt": 300, "output": 5}]}, "f"), 3000, 0, BOUNDS)  # fmt: skip
    kinds = [each.kind for each in found]
    assert kinds.count("a") / kinds.count("b") == pytest.approx(3, rel=0.15)
    assert [index for index, kind in enumerate(kinds) if kind == "c"] == [500, 1500, 2500]


def test_prompts_too_short_or_too_long_are_refused() -> None:
    def planned(prompt: int, output: int, **bounds: int) -> set[tuple[int, int]]:
        content = parse({**SMALL, "mix": [{"kind": "a", "prompt": prompt, "output": output}]}, "f")
        return {(each.prompt_tokens, each.max_tokens) for each in plan(content, 5, 0, replace(BOUNDS, **bounds))}

    with pytest.raises(UsageError, match=r"a: a prompt of 20 tokens cannot hold a pass key and its .* which need 30"):
        planned(20, 5)
    with pytest.raises(UsageError, match=r"a has a prompt of 1000 tokens and an answer of up to 50, .* accepts 1024"):
        planned(1000, 50, max_model_len=1024)
    assert planned(1000, 50, max_model_len=1024, longest=500) == {(450, 50)}
    with pytest.raises(UsageError, match="--longest 30: a prompt with a pass key and its question needs 30"):
        planned(1000, 50, max_model_len=1024, longest=30)


GOOD_LINE = b'{"timestamp": 1, "input_length": 5, "output_length": 5}\n'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", ""),
        (b"3", ""),
        (b"\xff\xfe\x00", ""),
        (b"[" * 100_000, ""),
        (b'{"timestamp": 1' + b"0" * 400 + b', "input_length": 9}', ""),
        (b'{"timestamp": 1, "input_length": 5}', "'output_length' is missing"),
        (b'{"timestamp": 1, "input_length": 0, "output_length": 5}', "0 must be a number, at least 1"),
        (b'{"timestamp": NaN, "input_length": 5, "output_length": 5}', "nan must be a number, at least 0"),
        (b'{"timestamp": 1, "input_length": true, "output_length": 5}', "True must be a number"),
        (b'{"timestamp": 1, "input_length": 1e300, "output_length": 5}', r"1e\+300 must be a number, at least 1"),
    ],
)
def test_wrong_lines_of_traces_are_reported(tmp_path: Path, line: bytes, expected: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD_LINE + b"\n" + line + b"\n")
    with pytest.raises(UsageError, match="line 3: " + expected):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("- 1", "must be a mapping with the keys name"),
        ("x" * (2 << 20), "is larger than"),
        # Where a date is read as text, the file is one, and no workload.
        *((each, "is not valid YAML|Field required|must be a mapping") for each in
            ("[1", "name: 2024-13-45", "[" * 100_000, "!!bool x", "!!timestamp x", "a: 0b_")),
    ],
)  # fmt: skip
def test_files_that_are_no_workloads(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "w.yaml"
    with pytest.raises(UsageError, match="neither a file nor one of bursts, chat"):
        workload.load(str(path))
    path.write_text(content)
    with pytest.raises(UsageError, match=expected):
        workload.load(str(path))
