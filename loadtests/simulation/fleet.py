"""Simulated replicas behind a router, each with a real scheduler and its own clock."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ropeswitch.loadtests.simulation.driver import Simulation
from ropeswitch.loadtests.simulation.records import Record
from ropeswitch.loadtests.simulation.routers import Fleet, Reading, Router
from ropeswitch.loadtests.simulation.workloads import Arrival


@dataclass
class Replica:
    """One engine, and the router's view of it.

    Attributes:
        simulation: Empty simulation at time 0.
        scrape: Seconds between two readings of its metrics.
        sessions: Prefix tokens sent to it, by session.
    """

    simulation: Simulation
    scrape: float
    sessions: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._readings: deque[tuple[float, Reading]] = deque([(0.0, Reading())])
        self._in_flight: list[Record] = []
        self._records: dict[str, Record] = {}

    def run_until(self, time: float) -> None:
        """Run steps until the engine's clock has reached ``time``; the last step may end after it."""
        engine = self.simulation
        while not engine.idle and engine.clock.now < time:
            engine.step()
            if engine.clock.now >= self._readings[-1][0] + self.scrape:
                self._readings.append((engine.clock.now, self._read()))
        if engine.idle and engine.clock.now < time:
            engine.clock.advance(time)
            last = self._readings[-1][0]
            scrapes = math.floor((time - last) / self.scrape)
            if scrapes:
                self._readings.append((last + scrapes * self.scrape, self._read()))

    def finish(self) -> None:
        """Run until all requests are done."""
        while not self.simulation.idle:
            self.simulation.step()

    def reading(self, time: float) -> Reading:
        """Return the latest reading made at or before ``time``; earlier ones are dropped."""
        while len(self._readings) > 1 and self._readings[1][0] <= time:
            self._readings.popleft()
        return self._readings[0][1]

    def in_flight(self, time: float) -> int:
        """Return the number of requests sent but not finished by ``time``."""
        self._in_flight = [each for each in self._in_flight if each.tokens < each.arrival.output or each.last > time]
        return len(self._in_flight)

    def add(self, record: Record) -> None:
        """Send a request; the engine's clock must have reached its arrival."""
        if record.arrival.session is not None:
            self.sessions[record.arrival.session] = record.arrival.prompt + record.arrival.output
        self._in_flight.append(record)
        self._records[record.name] = record
        self.simulation.add(record)

    def _read(self) -> Reading:
        scheduler = self.simulation.scheduler
        left = sum(
            request.num_prompt_tokens - request.num_computed_tokens
            for request in scheduler.requests.values()
            # Leave out the scheduler's internal requests.
            if request.request_id in self._records and request.num_computed_tokens < request.num_prompt_tokens
        )
        planner = getattr(scheduler, "length_aware", None)
        seconds = 0.0 if planner is None else planner.report(scheduler.running)["remaining_prefill_seconds"]
        return Reading(len(scheduler.waiting), scheduler.kv_cache_manager.usage, left, seconds)


def run(replicas: Sequence[Replica], router: Router, arrivals: Sequence[Arrival]) -> list[Record]:
    """Send every request to the replica the router chooses, run until all are done, and return a record per request.

    Args:
        replicas: Empty replicas.
        router: Chooses a replica when a request arrives.
        arrivals: Requests, ordered by time.

    Raises:
        SimulationError: if a scheduler is stuck, or a request got more or fewer tokens than it requested.
    """
    records = [Record(str(number), arrival) for number, arrival in enumerate(arrivals)]
    for record in records:
        for replica in replicas:
            replica.run_until(record.arrival.at)
        at = record.arrival.at
        fleet = Fleet(
            readings=[each.reading(at) for each in replicas],
            in_flight=[each.in_flight(at) for each in replicas],
            prefixes=[each.sessions for each in replicas],
        )
        replicas[router.choose(fleet, record.arrival)].add(record)
    for replica in replicas:
        replica.finish()
    return records
