"""A client's requests do not wait for another's list: whose turn it is, and how many sequences one may run."""

from collections import Counter

import pytest

from tests.model_patches.scheduling.conftest import TARGET
from tests.simulated import Arrival, Builder, Record, Simulation, Step


class Watched:
    """A simulation's requests in the order of their starts, and the most sequences of each client in a step."""

    def __init__(self, simulation: Simulation) -> None:
        self.started: dict[int, float] = {}
        self.most: Counter[str | None] = Counter()
        self._arrivals = simulation.arrivals
        simulation.watch = self._see
        self.records: list[Record] = simulation.run()

    def _see(self, step: Step) -> None:
        for name in step.tokens:
            self.started.setdefault(int(name), step.start)
        self.most |= Counter(self._arrivals[int(name)].client for name in step.tokens)

    def passed_by(self, number: int) -> int:
        """How many requests of other clients started after a request came, and before it did."""
        mine, start = self._arrivals[number], self.started[number]
        times = [at for each, at in self.started.items() if self._arrivals[each].client != mine.client]
        return sum(mine.at < at < start for at in times)


def listed(client: str, prompts: int, tokens: int = 900, output: int = 40, at: float = 0.0) -> list[Arrival]:
    return [Arrival(at, tokens + i, output, client) for i in range(prompts)]


@pytest.mark.parametrize(("sequences", "most"), [(1, 1), (4, 2), (16, 3), (256, 10)])
@pytest.mark.parametrize("chat", [100, 1500])
def test_a_chat_does_not_wait_for_another_s_list(builder: Builder, chat: int, sequences: int, most: int) -> None:
    arrivals = [*listed("list", 100), Arrival(0.1, chat, 20, "chat")]
    watched = Watched(builder.simulation("ours", arrivals, target=TARGET, sequences=sequences))
    assert watched.passed_by(100) <= most
    if sequences >= 16:
        assert watched.records[100].first_token_seconds < 4 * TARGET


@pytest.mark.parametrize("clients", [2, 4, 6])
def test_each_client_has_one_turn_before_a_request(builder: Builder, clients: int) -> None:
    """Even where the others' prompts are shorter, and more arrive all the time."""
    lists = [each for i in range(clients - 1) for each in listed(f"list {i}", 20, 300 * i + 100)]
    singles = [Arrival(0.5 * i, 100, 20, f"single {i % (clients - 1)}") for i in range(10)]
    arrivals = sorted([*lists, *singles, Arrival(0.4, 1800, 20, "chat")], key=lambda each: each.at)
    chat = next(i for i, each in enumerate(arrivals) if each.client == "chat")
    watched = Watched(builder.simulation("ours", arrivals, target=TARGET, sequences=3, asynchronous=True))
    assert watched.passed_by(chat) <= 2 * 2 * (clients - 1)


def test_a_long_prompt_does_not_wait_for_another_s_list(builder: Builder) -> None:
    arrivals = [*listed("list", 8, 60_000), Arrival(0.5, 90_000, 5, "book")]
    records = Watched(builder.simulation("ours", arrivals, target=TARGET)).records
    firsts = sorted(each.first for each in records[:8] if each.first is not None)
    assert records[8].first is not None and records[8].first < firsts[3]


def test_memory_goes_to_clients_in_turn(builder: Builder) -> None:
    """A prompt of more than half of the memory waits for one of a list of such prompts, not for all."""
    blocks = 100_000 // 16
    arrivals = [*listed("list", 6, 60_000, 100), Arrival(0.5, 70_000, 5, "book")]
    watched = Watched(builder.simulation("ours", arrivals, blocks, target=TARGET))
    assert watched.passed_by(6) <= 1


def test_a_client_leaves_slots_to_others_and_greedy_ones_share(builder: Builder) -> None:
    alone = Watched(builder.simulation("ours", listed("list", 100, output=200), target=TARGET, sequences=64))
    assert alone.most == {"list": 56}
    both = [*listed("list", 200, output=200), *listed("other", 100, output=200, at=1.0)]
    assert Watched(builder.simulation("ours", both, target=TARGET, sequences=64)).most["other"] >= 24
    tenant = [Arrival(each.at, each.prompt, each.output) for each in listed("", 100, output=200)]
    assert Watched(builder.simulation("ours", tenant, target=TARGET, sequences=64)).most == {None: 64}


def test_a_stream_that_switches_sets_resumes_over_its_client_s_share(builder: Builder) -> None:
    streams = [Arrival(0.0, 8000, 400, "streams"), *listed("streams", 13, 100, 2000)]
    arrivals = [*streams, *listed("list", 20, 100, 2000, at=1.0)]
    stream = Watched(builder.simulation("ours", arrivals, target=TARGET, sequences=16)).records[0]
    assert stream.preemptions == 1 and stream.worst_gap < 20 * TARGET
