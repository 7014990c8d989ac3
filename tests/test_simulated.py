"""The simulated engine core that the scheduler's property tests stand on: its costs by hand, its conservation laws."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from vllm import EngineArgs
from vllm.usage.usage_lib import UsageContext

from ropeswitch.deploy.plan.costs import GIB
from ropeswitch.deploy.plan.gpus import load, server_defaults
from tests.simulated import Arrival, Builder, SimulationError, Step, StepCosts

GPU = load()["A100-80GB"]
COSTS = StepCosts(GPU, 16)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(COSTS, tmp_path_factory.mktemp("model"))


def test_a_decode_step_by_hand() -> None:
    # One token after 1,048,576 others, Mistral-7B on 16 ranks of A100-80GB: each has 2 query heads and a copy of a KV head.
    # Weights of a rank: 32 layers of q and o 4096 x 256 each, k and v 4096 x 128 each, an MLP of 3 x 4096 x 896 and two
    # norms of 4096, and a head of 4096 x 2000: 461,438,976 of 2 bytes.
    weights = 2 * (32 * (4096 * (2 * 256 + 2 * 128) + 3 * 4096 * 896 + 2 * 4096) + 4096 * 2000)
    # Keys and values of a token: 32 layers x 2 x 128 values x 2 bytes = 16 KiB.
    memory = (weights + 16_384 * 1_048_577) / (2039e9 * 0.8)
    # 64 all-reduces of 15 us, and 4096 values of 2 bytes in each, of which a ring sends 2 x 15/16 at 300 GB/s x 0.7.
    reduces = 64 * 15e-6 + 64 * 4096 * 2 * 2 * 15 / 16 / 210e9
    assert COSTS.seconds([(1_048_576, 1)]) == pytest.approx(0.003 + memory + reduces, rel=1e-9)


def test_a_prefill_step_by_hand() -> None:
    # 2 operations for each of a rank's 452,984,832 linear weights and token, and one row of the head; 4 x 2 heads x 128
    # values x 32 layers operations for each of 8192 x 8193 / 2 pairs.
    linear = (2 * 452_984_832 * 8192 + 2 * 4096 * 2000) / (312e12 * 0.65)
    attention = 32_768 * 8192 * 8193 / 2 / (312e12 * 0.6)
    reduces = 64 * 15e-6 + 8192 * 64 * 4096 * 2 * 2 * 15 / 16 / 210e9
    assert COSTS.seconds([(0, 8192)]) == pytest.approx(0.003 + linear + attention + reduces, rel=1e-6)


@pytest.mark.parametrize(
    ("gpu", "name", "gib"),
    [("A100-80GB", "NVIDIA A100-SXM4-80GB", 79.2), ("H100-80GB", "NVIDIA H100", 79.1), ("B200-180GB", "B200", 178.3)],
)
def test_stock_s_defaults_are_upstream_s(monkeypatch: pytest.MonkeyPatch, gpu: str, name: str, gib: float) -> None:
    asked = {"get_device_total_memory": int(gib * GIB), "get_device_name": name, "is_tpu": False, "is_cpu": False}
    platform = SimpleNamespace(**{each: lambda value=value: value for each, value in asked.items()})
    monkeypatch.setattr("vllm.engine.arg_utils.current_platform", platform)
    tokens, sequences = EngineArgs.get_batch_defaults(1)
    server = UsageContext.OPENAI_API_SERVER
    assert server_defaults(load()[gpu]) == (tokens[server], sequences[server])


@pytest.mark.parametrize(("kind", "target"), [("stock", None), ("core", None), ("ours", None), ("ours", 0.02)], ids=str)
@pytest.mark.parametrize(
    ("asynchronous", "caching", "noise"),
    [(False, False, 0.0), (True, False, 0.2), (False, True, 0.0), (True, True, 0.0)],
)
def test_every_token_arrives_and_time_moves_on(
    builder: Builder, kind: str, target: float | None, asynchronous: bool, caching: bool, noise: float
) -> None:
    # The third one passes the end of the first factor set, 8192 tokens.
    arrivals = (Arrival(0.0, 30_000, 5), Arrival(0.0, 100, 40), Arrival(0.1, 8170, 40), Arrival(60.0, 1, 1))
    simulation = builder.simulation(
        kind, arrivals, 10_000, target=target, asynchronous=asynchronous, caching=caching, noise=noise
    )
    free = simulation.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    steps: list[Step] = []
    simulation.watch = steps.append
    records = simulation.run()
    assert [(record.tokens, record.arrival) for record in records] == [(one.output, one) for one in arrivals]
    for record in records:
        assert record.first is not None and record.arrival.at < record.first <= record.last
        assert record.worst_gap <= record.last - record.first
    assert all(before.start + before.seconds <= after.start for before, after in pairwise(steps))
    again = records[2].preemptions
    assert again == (kind != "stock")
    computed, needed = sum(sum(step.tokens.values()) for step in steps), sum(a.prompt + a.output - 1 for a in arrivals)
    assert computed >= needed and (again > 0 or computed == needed)
    assert simulation.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free


def test_a_request_that_never_fits_is_told(builder: Builder) -> None:
    with pytest.raises(SimulationError, match="planned nothing for 1000 steps while 1 requests wait: 0"):
        builder.simulation("stock", [Arrival(0.0, 5000, 1)], 100).run()
