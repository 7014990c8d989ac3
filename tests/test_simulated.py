"""The simulated engine core that the scheduler's property tests stand on: no token is lost, and time moves on."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm import EngineArgs
from vllm.usage.usage_lib import UsageContext

from ropeswitch.deploy.plan.costs import GIB
from ropeswitch.deploy.plan.gpus import load, server_defaults
from tests.simulated import Arrival, Builder, Step, StepCosts


@pytest.mark.parametrize(
    ("gpu", "name", "gib"),
    [("A100-80GB", "NVIDIA A100-SXM4-80GB", 79.2), ("H100-80GB", "NVIDIA H100", 79.1), ("B200-180GB", "B200", 178.3)],
)
def test_stock_s_defaults_are_upstream_s(monkeypatch: pytest.MonkeyPatch, gpu: str, name: str, gib: float) -> None:
    asked = {"get_device_total_memory": int(gib * GIB), "get_device_name": name, "is_tpu": False, "is_cpu": False}
    platform = SimpleNamespace(**{each: lambda value=value: value for each, value in asked.items()})
    platform.is_device_capability = lambda _: False
    monkeypatch.setattr("vllm.engine.arg_utils.current_platform", platform)
    tokens, sequences = EngineArgs.get_batch_defaults(1)
    server = UsageContext.OPENAI_API_SERVER
    assert server_defaults(load()[gpu]) == (tokens[server], sequences[server])


@pytest.mark.parametrize("kind", ["stock", "core", "ours"])
@pytest.mark.parametrize(
    ("asynchronous", "caching", "noise"), [(False, False, 0.0), (True, False, 0.2), (True, True, 0.0)]
)
def test_every_token_arrives_and_time_moves_on(
    tmp_path: Path, kind: str, asynchronous: bool, caching: bool, noise: float
) -> None:
    # The third one passes the end of the first factor set, 8192 tokens.
    arrivals = (Arrival(0.0, 30_000, 5), Arrival(0.0, 100, 40), Arrival(0.1, 8170, 40), Arrival(60.0, 1, 1))
    builder = Builder(StepCosts(load()["A100-80GB"], 16), tmp_path)
    simulation = builder.simulation(kind, arrivals, 10_000, asynchronous=asynchronous, caching=caching, noise=noise)
    steps: list[Step] = []
    simulation.watch = steps.append
    records = simulation.run()
    assert [record.tokens for record in records] == [one.output for one in arrivals]
    assert all(record.first is not None and record.arrival.at < record.first <= record.last for record in records)
    assert all(before.start + before.seconds <= after.start for before, after in pairwise(steps))
    computed, needed = sum(sum(step.tokens.values()) for step in steps), sum(a.prompt + a.output - 1 for a in arrivals)
    assert (records[2].preemptions, computed > needed) == ((0, False) if kind == "stock" else (1, True))
