"""The scheduling benchmark's workloads on a real engine: what they record, and what a crossing recomputes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeswitch.loadtests.bench.engine import make_checkpoint
from ropeswitch.loadtests.bench.sides import Side
from ropeswitch.loadtests.scheduling.arrivals import CROSSINGS, SHORT, WORKLOADS, arrivals
from ropeswitch.loadtests.scheduling.engine import serve
from ropeswitch.loadtests.scheduling.settings import HEADS, INTERMEDIATE, LAYERS, MAXIMUM, OURS, WINDOW

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(folder, layers=LAYERS, heads=HEADS, intermediate=INTERMEDIATE, window=WINDOW, maximum=MAXIMUM)
    side = Side(serve, str(folder), OURS)
    yield side
    side.stop()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_answered_whole(side: Side, name: str) -> None:
    result = side.ask(("served", {"name": name, "prompt": 1024, "alone": 0.2, "seed": 0}))
    wanted = arrivals(name, 1024, 0.2, seed=0)
    assert len(result["firsts"]) == sum(each.prompt <= SHORT for each in wanted)
    assert result["tokens"] == sum(each.prompt + each.output for each in wanted)
    assert 0 < result["gap"] < result["seconds"] and 0 < result["long"] < result["seconds"]


@pytest.mark.parametrize(("policy", "least"), [("length", CROSSINGS * WINDOW), ("reserve", 0)])
def test_a_crossing_recomputes_its_sequence_by_length_alone(side: Side, policy: str, least: int) -> None:
    result = side.ask(("exactness", {"policy": policy, "again": False, "seed": 0}))
    # Prefilling ahead may compute a few tokens that the switch computes again.
    assert least <= result["recomputed"] <= 1.05 * least
