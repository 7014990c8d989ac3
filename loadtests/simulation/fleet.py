"""Several simulated replicas behind a router, each with a real scheduler and a time of its own."""

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
    """One engine, and what the router knows of it.

    Attributes:
        simulation: Empty, at time 0.
        scrape: Seconds between two readings of its metrics.
        sessions: Tokens of each session's prefix that it was sent.
    """

    simulation: Simulation
    scrape: float
    sessions: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._readings: deque[tuple[float, Reading]] = deque([(0.0, Reading())])
        self._in_flight: list[Record] = []
        self._records: dict[str, Record] = {}

    def run_until(self, time: float) -> None:
        """Run steps until the engine's time has reached ``time``; a step that has begun ends after it."""
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
        """Run until no request is left."""
        while not self.simulation.idle:
            self.simulation.step()

    def reading(self, time: float) -> Reading:
        """The last reading that was made by ``time``."""
        while len(self._readings) > 1 and self._readings[1][0] <= time:
            self._readings.popleft()
        return self._readings[0][1]

    def in_flight(self, time: float) -> int:
        """Requests that were sent and are not answered to their end by ``time``."""
        self._in_flight = [each for each in self._in_flight if each.tokens < each.arrival.output or each.last > time]
        return len(self._in_flight)

    def add(self, record: Record) -> None:
        """Send a request; the engine's time must have reached its arrival."""
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
            # The scheduler's internal requests are none of the router's.
            if request.request_id in self._records and request.num_computed_tokens < request.num_prompt_tokens
        )
        planner = getattr(scheduler, "length_aware", None)
        seconds = 0.0 if planner is None else planner.report(scheduler.running)["remaining_prefill_seconds"]
        return Reading(len(scheduler.waiting), scheduler.kv_cache_manager.usage, left, seconds)


def run(replicas: Sequence[Replica], router: Router, arrivals: Sequence[Arrival]) -> list[Record]:
    """Send every request to the replica that the router chooses, and run until all are answered.

    Args:
        replicas: Empty.
        router: Chooses at a request's arrival.
        arrivals: In order of time.

    Returns:
        A record for each request, in order.

    Raises:
        SimulationError: when a scheduler is stuck, or a request got more or fewer tokens than it asked for.
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
