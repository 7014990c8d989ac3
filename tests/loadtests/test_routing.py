"""Routers of the simulator: whom they choose, that replicas behave like single engines, and the command."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ropeswitch.deploy.plan import gpus
from ropeswitch.loadtests.simulation import routing
from ropeswitch.loadtests.simulation.cluster import make_cluster
from ropeswitch.loadtests.simulation.costs import StepCosts
from ropeswitch.loadtests.simulation.fleet import Replica, run
from ropeswitch.loadtests.simulation.fleet_workloads import TURNS, arrivals, long_share
from ropeswitch.loadtests.simulation.policies import Builder, Options, ours
from ropeswitch.loadtests.simulation.records import Record
from ropeswitch.loadtests.simulation.routers import SCORERS, Fleet, Reading, Router
from ropeswitch.loadtests.simulation.workloads import CHUNK, FIRST_SET, Arrival, Size, Workload, make_workload, work

GPU = gpus.choose(gpus.load(), "A100-80GB")
CLUSTER = make_cluster("mistral-7b", GPU, 1)
COSTS = StepCosts(CLUSTER)
CHAT, LONG = Arrival(0.0, 100, 10), Arrival(0.0, 20_000, 10)


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    with TemporaryDirectory() as folder:
        yield Builder(CLUSTER, COSTS, Path(folder))


def fleet(readings: list[Reading], in_flight: list[int] | None = None, known: list[int] | None = None) -> Fleet:
    tokens = known or [0] * len(readings)
    return Fleet(readings, in_flight or [0] * len(readings), [{"a": count} for count in tokens])


def test_round_robin_takes_turns() -> None:
    router = Router(SCORERS["round robin"])
    idle = fleet([Reading()] * 3)
    assert [router.choose(idle, CHAT) for _ in range(6)] == [1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("name", "readings", "in_flight", "chosen"),
    [
        ("least requests", [Reading()] * 3, [2, 1, 3], 1),
        ("least queued tokens", [Reading(queued_tokens=9), Reading(queued_tokens=5), Reading()], [0, 0, 9], 2),
        # Fewer tokens, but deep in their prompts.
        (
            "remaining prefill",
            [Reading(queued_tokens=9, prefill_seconds=1), Reading(queued_tokens=5, prefill_seconds=2)],
            [9, 0],
            0,
        ),
        ("prefix-aware", [Reading(waiting=4), Reading(waiting=1, kv_usage=0.9), Reading(waiting=1)], None, 2),
    ],
)
def test_the_lowest_is_chosen(name: str, readings: list[Reading], in_flight: list[int] | None, chosen: int) -> None:
    assert Router(SCORERS[name]).choose(fleet(readings, in_flight), CHAT) == chosen


def test_a_session_goes_where_its_prefix_is_until_that_costs_more() -> None:
    router = Router(SCORERS["remaining prefill and prefix"])
    session = Arrival(0.0, 100, 10, "a")
    known = [0, 80, 0]
    assert router.choose(fleet([Reading()] * 3, known=known), session) == 1
    assert router.choose(fleet([Reading(), Reading(prefill_seconds=1), Reading()], [0, 1, 0], known), session) != 1
    assert router.choose(fleet([Reading()] * 3, [0, 1, 1], known), Arrival(0.0, 100, 10, "b")) == 0


def test_two_pools_divide_by_length() -> None:
    router = Router(SCORERS["two pools"], long_replicas=1)
    busy = fleet([Reading()] * 3, [5, 4, 9])
    assert router.choose(busy, LONG) == 2 and router.choose(busy, CHAT) == 1


def test_one_replica_is_an_engine(builder: Builder) -> None:
    """Step by step the same as the simulator's own loop."""
    workload = make_workload("heavy", CLUSTER, COSTS, Size(20, 16_384, 0.8, 3))
    options = Options(noise=0.1, seed=3)
    expected = builder.simulation(ours(GPU), workload, options).run().records
    empty = Workload("heavy", "", (), workload.kv_blocks)
    replica = Replica(builder.simulation(ours(GPU), empty, options), 0.05)
    found = run([replica], Router(), workload.arrivals)
    assert [(each.first, each.last, each.tokens) for each in found] == [
        (each.first, each.last, each.tokens) for each in expected
    ]


class Spy(Router):
    """Round robin that keeps what it sees of the first replica."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Reading] = []

    def choose(self, fleet: Fleet, arrival: Arrival) -> int:
        self.seen.append(fleet.readings[0])
        return super().choose(fleet, arrival)


def test_readings_are_those_of_the_last_scrape(builder: Builder) -> None:
    requests = [Arrival(0.0, 16_384, 10), Arrival(0.3, 100, 10), Arrival(1.2, 100, 10)]
    empty = Workload("a", "", (), CLUSTER.kv_blocks)
    seen: dict[float, list[Reading]] = {}
    for scrape in (0.001, 1.0):
        replica, spy = Replica(builder.simulation(ours(GPU), empty, Options()), scrape), Spy()
        run([replica], spy, requests)
        seen[scrape] = spy.seen
    first, early, _ = seen[0.001]
    assert first == Reading() and 0 < early.queued_tokens < 16_384 and early.prefill_seconds > 0
    # Before its first scrape a replica looks idle.
    assert seen[1.0][:2] == [Reading(), Reading()]


def test_an_idle_replica_is_read_at_the_next_scrape(builder: Builder) -> None:
    replica = Replica(builder.simulation(ours(GPU), Workload("a", "", (), CLUSTER.kv_blocks), Options()), 1.0)
    record = Record("a", Arrival(0.0, 16_000, 1))
    replica.add(record)
    replica.run_until(1.2)
    busy = replica.reading(1.2)
    assert busy.queued_tokens > 0
    replica.run_until(1.9)
    assert 1.2 < record.last < 1.9 and replica.reading(1.9) == busy, (
        "the engine is idle, and the router has not read it"
    )
    replica.run_until(2.5)
    assert replica.reading(2.5) == Reading()
    # Read at 5 s or a little later, and not again by 5.9 s, with the request that came since.
    replica.run_until(5.3)
    replica.add(Record("b", Arrival(5.3, 16_000, 1)))
    replica.run_until(5.9)
    assert replica.reading(5.9) == Reading()
    replica.run_until(6.3)
    assert replica.reading(6.3).queued_tokens > 0


def test_sessions_find_their_prefix_where_the_router_sends_them(builder: Builder) -> None:
    requests = arrivals("sessions", 2, CLUSTER, COSTS, Size(15, 16_384, 0.3, 1))
    assert len(requests) == 2 * 3 * TURNS
    by_session: dict[str, list[Arrival]] = {}
    for each in requests:
        by_session.setdefault(str(each.session), []).append(each)
    for turns in by_session.values():
        assert all(after.prompt > before.prompt + before.output for before, after in pairwise(turns))
    empty = Workload("sessions", "", (), CLUSTER.kv_blocks)
    computed = {}
    for name in ("round robin", "prefix-aware"):
        replicas = [Replica(builder.simulation(ours(GPU), empty, Options(prefix_caching=True)), 0.05) for _ in range(2)]
        run(replicas, Router(SCORERS[name]), requests)
        computed[name] = sum(each.simulation.computed for each in replicas)
    assert computed["prefix-aware"] < 0.8 * computed["round robin"]


def test_sessions_make_the_load_throughout() -> None:
    requests = arrivals("sessions", 4, CLUSTER, COSTS, Size(300, 65_536, 0.5, 2))
    before: dict[str, int] = {}
    ends, busy = requests[-1].at, [0.0] * 4
    for each in requests:
        name = str(each.session)
        seconds = work(COSTS, each.prompt, each.output) - COSTS.prefill_seconds(before.get(name, 0), CHUNK)
        busy[min(3, int(4 * each.at / ends))] += seconds
        before[name] = each.prompt
    assert sum(busy) / ends / 4 == pytest.approx(0.5, rel=0.05)
    assert all(part / ends == pytest.approx(0.5, rel=0.3) for part in busy)


@pytest.mark.parametrize("name", ["mixed", "heavy"])
def test_each_replica_s_share_makes_the_load(name: str) -> None:
    size = Size(60, 65_536, 0.5, 2)
    requests = arrivals(name, 4, CLUSTER, COSTS, size)
    assert [each.at for each in requests] == sorted(each.at for each in requests)
    busy = sum(work(COSTS, each.prompt, each.output) for each in requests)
    assert busy / requests[-1].at / 4 == pytest.approx(0.5, rel=0.15)
    assert 0 < long_share(requests, COSTS) < 1
    longs = [each.at for each in requests if each.prompt > FIRST_SET]
    assert len(set(longs)) == len(longs)


def test_the_command_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--workload", "heavy", "--replicas", "2", "--requests", "8", "--longest", "16384", "--seeds", "1"]
    flags += ["--policy", "ours", "--out", str(tmp_path)]
    assert routing.main(flags) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(SCORERS)
    lines = (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(SCORERS) and (tmp_path / "routing.png").stat().st_size > 10_000
    # The first is done, and another seed is not asked for.
    changed = json.loads(lines[0])
    changed["run"]["short"] = 123.0
    (tmp_path / "runs.jsonl").write_text("\n".join([json.dumps(changed), *lines[1:]]) + "\n", encoding="utf-8")
    assert routing.main(flags) == 0
    assert "| round robin | 123 (123 to 123) |" in capsys.readouterr().out
    (tmp_path / "runs.jsonl").write_text("{", encoding="utf-8")
    assert routing.main(flags) == 2
    assert "line 1: not a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "1"], "--replicas: '1' must be a whole number from 2 to 64"),
        (["--scrape", "0"], "--scrape: '0' must be a number from 0.001 to 60"),
        (["--workload", "single"], "--workload: invalid choice: 'single'"),
        (["--policy", "theirs"], "--policy: invalid choice: 'theirs'"),
        (["--gpu", "abacus"], "--gpu: 'abacus' is unknown"),
        (["--longest", "2000000"], "--longest: 2000000 tokens plus an answer do not fit"),
    ],
)
def test_refusals(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert routing.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("routing: error: ") and message in err and err.count("\n") == 1
