"""A client's requests do not wait for another's list: whose turn it is, and how many sequences one may run."""

import random
from collections import Counter

import pytest

from ropeswitch.deploy.plan.gpus import load
from tests.simulated import Arrival, Builder, Record, Simulation, Step, StepCosts

COSTS = StepCosts(load()["A100-80GB"], 16)
TARGET = 0.05


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(COSTS, tmp_path_factory.mktemp("model"))


class Starts:
    """Clients of the requests that started, in order, and the most sequences each ran at once."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._seen = simulation, set[str]()
        simulation.watch = self.see
        self.names: list[str] = []
        self.most: Counter[str | None] = Counter()

    def see(self, step: Step) -> None:
        self.names += [name for name in step.tokens if name not in self._seen]
        self._seen.update(step.tokens)
        self.most |= Counter(self._simulation.arrivals[int(name)].client for name in step.tokens)

    def before(self, name: int) -> list[Arrival]:
        """The requests that came no later than another, and started before it but after it came."""
        arrivals = self._simulation.arrivals
        return [arrivals[int(each)] for each in self.names[: self.names.index(str(name))]]


def passed(simulation: Simulation, records: list[Record], starts: Starts, number: int) -> int:
    """How many requests of other clients started after a request came, and before it did."""
    mine = records[number].arrival
    earlier = starts.names[: starts.names.index(str(number))]
    others = [records[int(name)] for name in earlier if records[int(name)].arrival.client != mine.client]
    return sum(each.first is not None and each.first > mine.at for each in others)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("sequences", [1, 4, 16, 256])
@pytest.mark.parametrize("chat", [100, 1000, 4000])
def test_a_chat_does_not_wait_for_another_s_list(
    builder: Builder, chat: int, sequences: int, asynchronous: bool
) -> None:
    arrivals = [Arrival(0.0, 900 + i % 200, 200, "list") for i in range(400)]
    arrivals.append(Arrival(1.0, chat, 20, "chat"))
    simulation = builder.simulation("ours", arrivals, target=TARGET, asynchronous=asynchronous, sequences=sequences)
    starts = Starts(simulation)
    records = simulation.run()
    print(chat, sequences, passed(simulation, records, starts, 400), records[400].first_token_seconds, starts.most)
