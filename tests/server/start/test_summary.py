"""What a start says of the model and its ladder."""

from argparse import Namespace
from importlib.metadata import version
from typing import Any

import pytest
from vllm import __version__

from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.factors.ladders.made import MadeLadder, Origin
from ropeswitch.server.start.log.summary import summary, versions


def ladder(count: int, note: str = "") -> MadeLadder:
    sets = tuple(FactorSet(f"s{index}", 64 << index, (1.0,) * 4) for index in range(count))
    return MadeLadder(FactorLadder(sets), (Origin(None, "a file"),) * count, "file:x", note=note)


def flags(**changes: Any) -> Namespace:
    return Namespace(
        **{"model": "m", "served_model_name": None, "max_model_len": None, "ladder_policy": "length"} | changes
    )


def test_versions() -> None:
    assert versions() == f"version {version('ropeswitch')}, vLLM {__version__.partition('+')[0]}"


@pytest.mark.parametrize("count", [1, 5])
def test_few_sets_are_all_listed(count: int) -> None:
    head, _, *rows, last = summary(flags(served_model_name=["a", "b"]), ladder(count), [])
    assert last == "starting the engine for m, served as a, b" and head.startswith("ladder file:x")
    assert [row.split()[0] for row in rows] == [f"s{index}" for index in range(count)]


def test_of_many_sets_the_first_and_the_last_are_listed() -> None:
    lines = summary(flags(ladder_policy="reserve"), ladder(9, "a note"), ["of the cache"])
    assert [line.split()[0] for line in lines[2:7]] == ["s0", "s1", "s2", "...", "s8"]
    assert "5 more" in lines[5]
    assert (
        lines[7] == "a note"
        and lines[8].startswith("ladder policy reserve")
        and lines[9] == "of the cache"
        and len(lines) == 11
    )
