"""What docs/scheduling.md promises about waiting, asserted on the real scheduler at every step of overloaded simulations."""

import random
from collections.abc import Iterator
from math import exp, log

import pytest

from tests.model_patches.scheduling.conftest import TARGET
from tests.simulated import Arrival, Builder, Simulation, Step, prefill_seconds, step_seconds

# Steps of the target that may pass between two of the oldest prefill's.
TURN = 8
# Seconds for which short requests keep coming.
LATE = 12.0


def overload(seed: int, seconds: float, longs: tuple[int, ...]) -> list[Arrival]:
    """More short requests than the cluster can prefill, all the time, and long ones now and then."""
    dice = random.Random(seed)

    def shorts() -> Iterator[Arrival]:
        now = 0.0
        while now < seconds:
            length = dice.choice([100, 500, 2000, 4000])
            yield Arrival(now, length, dice.randint(1, 20))
            now += 0.4 * step_seconds([(0, length)])

    spread = [Arrival(seconds * (i + 0.5) / len(longs) / 2, length, 5) for i, length in enumerate(longs)]
    return sorted([*shorts(), *spread], key=lambda arrival: arrival.at)


class Oldest:
    """How long the oldest request that has no token yet goes without any in a step."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        simulation.watch = self.see
        self.passed = self.worst = self.longest_step = 0.0
        self._last: str | None = None

    def see(self, step: Step) -> None:
        now = step.start + step.seconds
        if LATE > step.start > 1.0:
            # Before and after, nothing urgent may be there.
            self.longest_step = max(self.longest_step, step.seconds)
        prefilling = [each for each in self._simulation.scheduler.requests.values() if each.num_output_tokens == 0]
        oldest = min((int(each.request_id) for each in prefilling), default=None)
        name = None if oldest is None else str(oldest)
        if name is None or name != self._last or name in step.tokens:
            self._last, self.passed = name, now
        if step.start < LATE:
            self.worst = max(self.worst, now - self.passed)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_oldest_is_passed_over_for_eight_steps_at_most(builder: Builder, seed: int, asynchronous: bool) -> None:
    arrivals = overload(seed, LATE, (400_000, 60_000, 100_000, 30_000, 150_000))
    simulation = builder.simulation("ours", arrivals, target=TARGET, asynchronous=asynchronous, noise=0.1, seed=seed)
    oldest = Oldest(simulation)
    simulation.run()
    assert oldest.longest_step < 2.5 * TARGET
    assert oldest.worst <= TURN * TARGET


def test_tiny_requests_do_not_pass_it_over_for_longer(builder: Builder) -> None:
    """Each is a step of next to no tokens, which takes its time all the same."""
    tiny = [Arrival(i * 0.004, 50, 1) for i in range(3000)]
    arrivals = sorted([*tiny, Arrival(0.5, 400_000, 5)], key=lambda arrival: arrival.at)
    simulation = builder.simulation("ours", arrivals, target=TARGET)
    oldest = Oldest(simulation)
    simulation.run()
    assert oldest.worst <= TURN * TARGET


@pytest.mark.parametrize("long", [100_000, 1_000_000])
def test_a_burst_waits_no_longer_than_the_bound(builder: Builder, long: int) -> None:
    """64 short requests and a long one at once: no one waits longer than eight times the work that was there, and a turn."""
    arrivals = [Arrival(0.0, long, 5), *(Arrival(0.0, 500 + 10 * i, 20) for i in range(64))]
    simulation = builder.simulation("ours", arrivals, target=TARGET)
    records = simulation.run()
    work = 0.0
    for record in records[1:]:
        work += step_seconds([(0, record.arrival.prompt)])
        assert record.first_token_seconds <= TURN * (work + TARGET)
    alone = builder.simulation("ours", arrivals[:1], target=TARGET)
    prefill = alone.run()[0].first_token_seconds
    assert records[0].first_token_seconds <= TURN * (prefill + TARGET)
    # And the short ones do not wait for the long one at all, which they do in stock's order.
    assert max(record.first_token_seconds for record in records[1:]) < 3 * work
    stock = builder.simulation("stock", arrivals).run()
    assert max(record.first_token_seconds for record in stock[1:]) > prefill


def test_a_long_request_that_does_not_fit_neither_blocks_nor_starves(builder: Builder) -> None:
    """Memory for the long prompt and little more, half of it taken when it comes; short ones keep coming."""
    blocks = 200_000 // 16 + 1_000
    holder, long = Arrival(0.0, 100_000, 600), Arrival(3.0, 200_000, 5)
    dice = random.Random(3)
    shorts = [Arrival(i * 0.05, dice.randint(100, 1000), 20) for i in range(1200)]
    arrivals = sorted([holder, long, *shorts], key=lambda arrival: arrival.at)
    simulation = builder.simulation("ours", arrivals, blocks, target=TARGET)
    records = simulation.run()
    by = {record.arrival.prompt: record for record in records if record.arrival.prompt >= 100_000}
    waited = sorted(record.first_token_seconds for record in records if record.arrival.prompt <= 1000)
    assert waited[int(0.99 * len(waited))] < 1.0
    # It starts as soon as the holder is done: nothing that came later is in its way.
    prefill = sum(step_seconds([(at, 2048)]) for at in range(0, 200_000, 2048))
    assert by[200_000].first is not None
    assert by[200_000].first - by[100_000].last < 4 * prefill


@pytest.mark.parametrize("longs", [1, 2])
def test_prompts_of_a_few_steps_do_not_wait_for_long_ones(builder: Builder, longs: int) -> None:
    """Steps grow while nothing is urgent; a prompt that fits a grown step alone still gets its turns."""
    length = next(each for each in range(1000, 100_000, 100) if step_seconds([(0, each)]) > 2 * TARGET)
    medium = [Arrival(8.0 + i * 0.01, length, 2) for i in range(3)]
    arrivals = [*(Arrival(0.01 * i, 700_000, 2) for i in range(longs)), *medium]
    simulation = builder.simulation("ours", arrivals, target=TARGET)
    records = simulation.run()
    assert min(each.first_token_seconds for each in records[:longs]) > 15
    # Alone they take two steps each; every second one is the oldest prompt's.
    worst = max(each.first_token_seconds for each in records[longs:])
    assert worst < 1.0 + 4 * 3 * 2 * TARGET, worst


@pytest.mark.parametrize("seed", [0, 5, 6, 11, 27, 36, 59, 87])
def test_no_prompt_waits_for_longer_ones(builder: Builder, seed: int) -> None:
    """At most eight times the time of all prompts up to twice as long as it, and half a second for steps that have grown."""
    dice = random.Random(seed)
    arrivals = []
    for _ in range(dice.randint(3, 14)):
        at, length = dice.uniform(0, dice.choice([1, 10, 30])), round(exp(dice.uniform(log(100), log(500_000))))
        arrivals.append(Arrival(at, length, dice.choice([1, 2, 30])))
    arrivals.sort(key=lambda arrival: arrival.at)
    noise, asynchronous = dice.choice([0, 0.1]), dice.random() < 0.5
    records = builder.simulation(
        "ours", arrivals, target=TARGET, noise=noise, asynchronous=asynchronous, seed=seed
    ).run()
    for record in records:
        shorter = [each for each in arrivals if each.prompt <= 2 * record.arrival.prompt]
        alone = sum(prefill_seconds(each.prompt) for each in shorter)
        assert record.first_token_seconds <= 0.5 + TURN * (alone + TARGET), record
