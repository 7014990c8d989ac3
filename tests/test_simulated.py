"""The simulated engine core that the scheduler's property tests stand on: no token is lost, and time moves on."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.simulated import Arrival, Builder, Step


@pytest.mark.parametrize("kind", ["stock", "core", "ours"])
@pytest.mark.parametrize(
    ("asynchronous", "caching", "noise"), [(False, False, 0.0), (True, False, 0.2), (True, True, 0.0)]
)
def test_every_token_arrives_and_time_moves_on(
    tmp_path: Path, kind: str, asynchronous: bool, caching: bool, noise: float
) -> None:
    # The third one passes the end of the first factor set, 8192 tokens.
    arrivals = (Arrival(0.0, 30_000, 5), Arrival(0.0, 100, 40), Arrival(0.1, 8170, 40), Arrival(60.0, 1, 1))
    builder = Builder(tmp_path)
    simulation = builder.simulation(kind, arrivals, 10_000, asynchronous=asynchronous, caching=caching, noise=noise)
    steps: list[Step] = []
    simulation.watch = steps.append
    records = simulation.run()
    assert [record.tokens for record in records] == [one.output for one in arrivals]
    assert all(record.first is not None and record.arrival.at < record.first <= record.last for record in records)
    assert all(before.start + before.seconds <= after.start for before, after in pairwise(steps))
    computed, needed = sum(sum(step.tokens.values()) for step in steps), sum(a.prompt + a.output - 1 for a in arrivals)
    assert (records[2].preemptions, computed > needed) == ((0, False) if kind == "stock" else (1, True))
