"""Bands, assertions and objectives as they are written."""

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.assertions import Assertion, Slo
from ropeswitch.loadtests.client.bands import DEFAULT, Band, band, bands, bands_of_sets

FIGURES: dict[str, Any] = {
    "p99_ttft_ms": 400.0,
    "median_itl_ms": 10.0,
    "failed": 0,
    "correct_share": None,
    "output_throughput": 50.0,
    "bands": {"0-8k": {"p99_ttft_ms": 90.0, "failed": 0}},
}
BASELINE: dict[str, Any] = {"p99_ttft_ms": 800.0, "median_itl_ms": 0.0, "bands": {"0-8k": {"p99_ttft_ms": 100.0}}}


@given(st.lists(st.integers(0, 1 << 24), min_size=2, max_size=8, unique=True).map(sorted), st.booleans())
def test_bands_are_read_as_they_are_written(edges: list[int], is_open: bool) -> None:
    made = [Band(low, high) for low, high in itertools.pairwise(edges)]
    if is_open:
        made.append(Band(edges[-1], None))
    assert bands(",".join(map(str, reversed(made)))) == tuple(made)
    for edge in edges[1:]:
        assert sum(edge in each for each in made) == 1


def test_default_bands_have_every_length() -> None:
    for length in (1, 8192, 8193, 1 << 20, (1 << 21) + 1):
        assert sum(length in each for each in bands(DEFAULT)) == 1
    assert [str(each) for each in bands_of_sets([8192, 2097152])] == ["0-8k", "8k-2M"]


@pytest.mark.parametrize("text", ["8k", "8k-8k", "9k-8k", "0-8k-9k", "a-b", "-8k"])
def test_wrong_bands_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        band(text)


@pytest.mark.parametrize(
    ("text", "value", "ok"),
    [
        ("ttft_p99<0.5", 0.4, True),
        ("ttft_p99<0.4", 0.4, False),
        ("ttft_p99<=0.4", 0.4, True),
        ("band=0-8k,ttft_p99<0.1", 0.09, True),
        ("band=0-8192, ttft_p99 < 0.05", 0.09, False),
        ("failed==0", 0.0, True),
        ("output_throughput>=60", 50.0, False),
        ("itl_p50<0.02", 0.01, True),
        # There is no such figure in these: nothing was measured, so nothing holds.
        ("correct>=0", None, False),
        ("band=8k-16k,ttft_p99<9", None, False),
        ("ttft_p90<9", None, False),
        ("ratio_ttft_p99<0.6", 0.5, True),
        ("band=0-8k,ratio_ttft_p99<0.8", 0.9, False),
        ("ratio_itl_p50<9", None, False),
        ("ratio_failed<9", None, False),
    ],
)
def test_assertions(text: str, value: float | None, ok: bool) -> None:
    (checked,) = Assertion.parse(text).check(FIGURES, BASELINE)
    assert checked["value"] == (pytest.approx(value) if value is not None else None)
    assert checked["ok"] is ok


def test_several_limits_are_checked_one_by_one() -> None:
    checked = Assertion.parse("band=0-8k,ttft_p99<0.5,failed>0").check(FIGURES, None)
    assert [(each["text"], each["ok"]) for each in checked] == [
        ("band=0-8k,ttft_p99<0.5", True),
        ("band=0-8k,failed>0", False),
    ]


@pytest.mark.parametrize(
    "text", ["", "band=0-8k", "ttft<1", "ttft_p98<1", "ttft_p99", "ttft_p99<", "ttft_p99<x", "x=1", "ttft_p99<1,"]
)
def test_wrong_assertions_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Assertion.parse(text)


@given(st.text())
def test_any_text_is_an_assertion_or_a_usage_error(text: str) -> None:
    for parse in (Assertion.parse, Slo.parse):
        with contextlib.suppress(UsageError):
            parse(text)


def test_objectives() -> None:
    slo = Slo.parse("band=0-8k,ttft<0.5,tpot<0.1,e2el<9")
    assert slo.band == Band(0, 8192) and slo.bounds == {"ttft": 0.5, "tpot": 0.1, "e2el": 9.0}
    assert Slo.parse("band=0-8k,ttft<0.5").scaled(0.5).band == Band(0, 4096)
    for text in ("ttft<1e", "itl<1", "ttft<=1", "band=0-8k", "ttft_p99<1"):
        with pytest.raises(UsageError):
            Slo.parse(text)
