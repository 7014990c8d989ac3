"""The simulator: its cost model against hand arithmetic, its conservation laws under every scheduler."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from vllm import EngineArgs
from vllm.usage.usage_lib import UsageContext

from ropeswitch.deploy.plan.costs import BLOCK_SIZE, GIB
from ropeswitch.deploy.plan.gpus import load, server_defaults
from ropeswitch.loadtests.simulation.cluster import make_cluster
from ropeswitch.loadtests.simulation.costs import Achieved, StepCosts
from ropeswitch.loadtests.simulation.policies import (
    Builder,
    Options,
    Policy,
    ours,
    stock_default,
    stock_tuned,
)
from ropeswitch.loadtests.simulation.records import Clock, Outcome, Record, SimulationError, Step
from ropeswitch.loadtests.simulation.report import best, figures, percentile, seconds, shown, table
from ropeswitch.loadtests.simulation.workloads import WORKLOADS, Arrival, Size, Workload, make_workload

GPU = load()["A100-80GB"]
CLUSTER = make_cluster("mistral-7b", GPU, 16)
COSTS = StepCosts(CLUSTER)
POLICIES = (stock_default(GPU), Policy("tuned", 8192, 256, adaptive=True), ours(GPU), ours(GPU, 0.02))


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(CLUSTER, COSTS, tmp_path_factory.mktemp("model"))


def workload(*arrivals: Arrival, kv_blocks: int = 10_000) -> Workload:
    return Workload("made up", "", arrivals, kv_blocks)


def test_a_decode_step_by_hand() -> None:
    # One token after 1,048,576 others, Mistral-7B on 16 ranks of A100-80GB: each has 2 query heads and a copy of a KV head.
    # Weights of a rank: 32 layers of q and o 4096 x 256 each, k and v 4096 x 128 each, an MLP of 3 x 4096 x 896 and two
    # norms of 4096, and a head of 4096 x 2000: 461,438,976 of 2 bytes.
    weights = 2 * (32 * (4096 * (2 * 256 + 2 * 128) + 3 * 4096 * 896 + 2 * 4096) + 4096 * 2000)
    assert weights == 922_877_952
    # Keys and values of a token: 32 layers x 2 x 128 values x 2 bytes = 16 KiB.
    read = 16_384 * 1_048_577
    memory = (weights + read) / (2039e9 * 0.8)
    # 64 all-reduces of 15 us, and 4096 values of 2 bytes in each, of which a ring sends 2 x 15/16 at 300 GB/s x 0.7.
    reduces = 64 * 15e-6 + 64 * 4096 * 2 * 2 * 15 / 16 / 210e9
    assert COSTS.seconds([(1_048_576, 1)]) == pytest.approx(0.003 + memory + reduces, rel=1e-9)
    assert COSTS.seconds([(1_048_576, 1)]) == pytest.approx(0.01506, rel=1e-3)


def test_a_prefill_step_by_hand() -> None:
    # 8192 tokens from the start: 2 operations for each of a rank's 452,984,832 linear weights and token, and one row of the
    # head; 4 x 2 heads x 128 values x 32 layers operations for each of 8192 x 8193 / 2 pairs.
    linear = (2 * 452_984_832 * 8192 + 2 * 4096 * 2000) / (312e12 * 0.65)
    attention = 32_768 * 8192 * 8193 / 2 / (312e12 * 0.6)
    reduces = 64 * 15e-6 + 8192 * 64 * 4096 * 2 * 2 * 15 / 16 / 210e9
    assert COSTS.seconds([(0, 8192)]) == pytest.approx(0.003 + linear + attention + reduces, rel=1e-6)
    assert COSTS.prefill_seconds(10_000, 8192) == COSTS.seconds([(0, 8192)]) + COSTS.seconds([(8192, 1808)])


def test_kv_memory_is_the_planner_s() -> None:
    # 79.2 GiB x 0.9 less 3 GiB and the weights, embedding included; a block is 16 tokens of 16 KiB.
    free = int(79.2 * GIB * 0.9) - 3 * GIB - 922_877_952 - 2 * 4096 * 2000 - 2 * 4096
    assert CLUSTER.kv_blocks == free // (16 * 16_384)


@pytest.mark.parametrize(
    ("gpu", "name", "gib"),
    [("A100-80GB", "NVIDIA A100-SXM4-80GB", 79.2), ("H100-80GB", "NVIDIA H100", 79.1), ("B200-180GB", "B200", 178.3)],
)
def test_stock_s_defaults_are_upstream_s(monkeypatch: pytest.MonkeyPatch, gpu: str, name: str, gib: float) -> None:
    platform = SimpleNamespace(
        get_device_total_memory=lambda: int(gib * GIB),
        get_device_name=lambda: name,
        is_tpu=lambda: False,
        is_cpu=lambda: False,
    )
    monkeypatch.setattr("vllm.engine.arg_utils.current_platform", platform)
    tokens, sequences = EngineArgs.get_batch_defaults(1)
    server = UsageContext.OPENAI_API_SERVER
    assert server_defaults(load()[gpu]) == (tokens[server], sequences[server])


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(
    "options",
    [Options(), Options(asynchronous=True, noise=0.2), Options(prefix_caching=True), Options(True, True)],
    ids=["sync", "async, noise", "caching", "async, caching"],
)
def test_every_token_arrives_and_time_moves_on(builder: Builder, policy: Policy, options: Options) -> None:
    # The third one passes the end of the first factor set, 8192 tokens.
    arrivals = (Arrival(0.0, 30_000, 5), Arrival(0.0, 100, 40), Arrival(0.1, 8170, 40), Arrival(60.0, 1, 1))
    steps: list[Step] = []
    simulation = builder.simulation(policy, workload(*arrivals), options)
    free = simulation.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    simulation.watch = steps.append
    outcome = simulation.run()
    assert [(record.tokens, record.arrival) for record in outcome.records] == [(one.output, one) for one in arrivals]
    for record in outcome.records:
        assert record.first is not None and record.arrival.at < record.first <= record.last
        assert record.worst_gap <= record.last - record.first
    assert all(before.start + before.seconds <= after.start for before, after in pairwise(steps))
    assert outcome.steps == len(steps) and outcome.computed == sum(sum(step.tokens.values()) for step in steps)
    assert outcome.seconds == max(record.last for record in outcome.records) > 60.0
    needed = sum(one.prompt + one.output - 1 for one in arrivals)
    again = 0 if policy.kind != "ours" else outcome.records[2].preemptions
    assert again == (policy.kind == "ours")
    assert outcome.computed >= needed and (again > 0 or outcome.computed == needed)
    assert simulation.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free


def test_the_same_seed_is_the_same_simulation(builder: Builder) -> None:
    made = make_workload("mixed", CLUSTER, COSTS, Size(10, 16_384, 0.65, 7))
    first, second = (builder.simulation(ours(GPU), made, Options(noise=0.1, seed=3)).run() for _ in range(2))
    assert first == second
    other = builder.simulation(ours(GPU), made, Options(noise=0.1, seed=4)).run()
    assert other.seconds != first.seconds


def test_stock_makes_a_chat_wait_for_a_long_prompt(builder: Builder) -> None:
    """The problem shows: the chat waits for nearly all of the prompt, and for a few chunks of it under the others."""
    alone = COSTS.prefill_seconds(500_000, 2048)
    long, chat = Arrival(0.0, 500_000, 2), Arrival(0.5, 200, 20)
    waits = {}
    for policy in (stock_default(GPU), Policy("tuned", 2048, 256), ours(GPU)):
        outcome = builder.simulation(policy, workload(long, chat, kv_blocks=40_000), Options()).run()
        waits[policy.kind] = outcome.records[1].first_token_seconds
    assert waits["default"] > 0.95 * (alone - 0.5)
    assert waits["tuned"] < 0.3 and waits["ours"] < 0.3


def test_a_request_that_never_fits_is_told(builder: Builder) -> None:
    simulation = builder.simulation(stock_default(GPU), workload(Arrival(0.0, 5000, 1), kv_blocks=100), Options())
    with pytest.raises(SimulationError, match="planned nothing for 1000 steps while 1 requests wait: 0"):
        simulation.run()


def test_time_does_not_go_back() -> None:
    clock = Clock()
    clock.advance(2.0)
    with pytest.raises(SimulationError, match=r"from 2\.0 s to 1\.0 s"):
        clock.advance(1.0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_seeded_and_fit(name: str) -> None:
    made = [make_workload(name, CLUSTER, COSTS, Size(300, 1_000_000, 0.65, seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    for one in made:
        assert [each.at for each in one.arrivals] == sorted(each.at for each in one.arrivals)
        longest = max(each.prompt for each in one.arrivals)
        assert longest == 1_000_000 or (name == "crossing" and longest < 8192)
        needs = [-(-(each.prompt + each.output) // BLOCK_SIZE) for each in one.arrivals]
        assert max(needs) < one.kv_blocks <= CLUSTER.kv_blocks


def test_the_load_is_what_was_asked_for() -> None:
    light, heavy = (make_workload("heavy", CLUSTER, COSTS, Size(500, 1_000_000, load, 1)) for load in (0.3, 0.6))
    assert light.arrivals[-1].at == pytest.approx(2 * heavy.arrivals[-1].at)
    lengths = sorted(each.prompt for each in light.arrivals)
    # The median of a Pareto distribution from 100 on with exponent 0.75 is 100 x 2^(1 / 0.75) = 252.
    assert lengths[0] == 100 and lengths[250] == pytest.approx(252, rel=0.02)


def _outcome(*waits: float) -> Outcome:
    arrivals = [Arrival(1.0, 1000 if i else 300_000, 3) for i in range(len(waits))]
    records = [
        Record(str(i), arrival, 1.0 + wait, 5.0 + wait, worst_gap=wait / 2, tokens=3)
        for i, (arrival, wait) in enumerate(zip(arrivals, waits, strict=True))
    ]
    return Outcome(records, seconds=11.0, steps=7, computed=2 * sum(arrival.prompt + 2 for arrival in arrivals))


def test_figures() -> None:
    run = figures(POLICIES[0], _outcome(40.0, 1.0, 3.0, 2.0))
    assert run.waits["<=2k"].count == 3
    assert (run.waits["<=2k"].p50, run.waits["<=2k"].p99, run.waits["<=2k"].max) == (2.0, 3.0, 3.0)
    assert run.waits[">256k"].p50 == 40.0 and "2k-32k" not in run.waits
    assert (run.worst_gap, run.longest_done, run.steps) == (20.0, 44.0, 7)
    assert run.tokens_per_second == (303_000 + 12) / 10
    assert run.computed_again == 1.0
    assert [percentile([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.51, 1.0)] == [1, 2, 3, 4]
    assert [seconds(value) for value in (0.01234, 1.234, 12.34, 1234.5)] == ["0.012", "1.23", "12.3", "1234"]


def test_the_table_names_the_best_tuned_setting_alone() -> None:
    tuned = stock_tuned()
    runs = [figures(stock_default(GPU), _outcome(9.0, 9.0)), figures(ours(GPU), _outcome(9.0, 0.5))]
    runs += [figures(policy, _outcome(9.0, 1.0 + (policy is not tuned[2]))) for policy in tuned]
    assert best(runs[2:]).policy == tuned[2]
    assert [run.policy for run in shown(runs)] == [stock_default(GPU), ours(GPU), tuned[2]]
    lines = table(runs).splitlines()
    assert len(lines) == 4 and lines[3].startswith(str(tuned[2])) and "1.00 / 1.00 / 1.00" in lines[3]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("sequences", "graph"),
    [
        ([(1000, 1)] * 256, "full"),
        ([(1000, 1)] * 512, "full"),
        ([(1000, 1)] * 513, "none"),
        ([(1000, 1)] * 12 + [(0, 500)], "piecewise"),
        ([(1000, 1)] * 12 + [(0, 501)], "none"),
    ],
)
def test_the_cuda_graph_of_a_step(sequences: list[tuple[int, int]], graph: str) -> None:
    assert COSTS.graph(sequences) == graph


def test_launches_show_where_the_gpu_takes_less() -> None:
    slow = StepCosts(CLUSTER, Achieved(piecewise_seconds=1e-3, eager_seconds=2e-3))
    assert slow.seconds([(1000, 1)]) == COSTS.seconds([(1000, 1)])
    assert slow.seconds([(1000, 1), (0, 16)]) == pytest.approx(0.003 + 32 * 1e-3)
    assert slow.seconds([(0, 1024)]) == pytest.approx(0.003 + 32 * 2e-3)
    assert slow.seconds([(0, 8192)]) > 0.003 + 32 * 2e-3
