"""The event loop: vLLM's engine core in virtual time, with a real scheduler and a cost model instead of the model."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from ropeswitch.loadtests.simulation.costs import StepCosts
from ropeswitch.loadtests.simulation.records import Clock, Outcome, Record, SimulationError, Step
from ropeswitch.loadtests.simulation.workloads import Arrival

# The cost model reads no tokens, so any value works.
TOKEN = 1
# Consecutive steps without a planned token, while requests wait, after which the scheduler counts as stuck.
STUCK = 1000


@dataclass
class _Live:
    """A request in the scheduler; ``known`` counts the worker's tokens, some of which the scheduler may not have yet."""

    request: Request
    record: Record
    known: int


@dataclass
class _Flight:
    plan: SchedulerOutput
    result: ModelRunnerOutput
    step: Step


@dataclass
class Simulation:
    """One scheduler and the requests that arrive at it.

    Attributes:
        scheduler: Synchronous or asynchronous scheduler, empty.
        clock: Clock at 0; shared with the scheduler if that reads the time.
        costs: Step times.
        arrivals: Requests, ordered by time.
        make_request: Makes a request from an id, an arrival and a list of prompt tokens.
        depth: Maximum steps in flight, ``VllmConfig.max_concurrent_batches``.
        interval: ``--prefill-schedule-interval``, as in ``DPEngineCoreProc``; 1 throttles no prefill.
        noise: Standard deviation of the logarithm of a step's random slowdown or speed-up; 0 for none.
        seed: Random seed of the noise.
        watch: Called for every step that computed tokens, after the scheduler has processed its result.
    """

    scheduler: Scheduler
    clock: Clock
    costs: StepCosts
    arrivals: Sequence[Arrival]
    make_request: Callable[[str, Arrival, list[int]], Request]
    depth: int = 1
    interval: int = 1
    noise: float = 0.0
    seed: int = 0
    watch: Callable[[Step], None] | None = None

    def __post_init__(self) -> None:
        self._noise = random.Random(self.seed)
        self._live: dict[str, _Live] = {}
        self._flights: deque[_Flight] = deque()
        self._busy_until = 0.0
        self._idle_steps = 0
        self._planned = 0
        self._prompts = _Prompts()
        self._outcome = Outcome([])

    def run(self) -> Outcome:
        """Simulate until every request has finished.

        Raises:
            SimulationError: if the scheduler is stuck, or a request got more or fewer tokens than it requested.
        """
        records = [Record(str(i), arrival) for i, arrival in enumerate(self.arrivals)]
        waiting = deque(records)
        while waiting or not self.idle:
            while waiting and waiting[0].arrival.at <= self.clock.now:
                self.add(waiting.popleft())
            if self.idle:
                self.clock.advance(waiting[0].arrival.at)
            else:
                self.step()
        self._outcome.records = records
        self._outcome.seconds = max((record.last for record in records), default=0.0)
        return self._outcome

    @property
    def computed(self) -> int:
        """Tokens computed by the model so far."""
        return self._outcome.computed

    @property
    def idle(self) -> bool:
        """Whether the engine has no request."""
        return not self._live and not self._flights

    def add(self, record: Record) -> None:
        """Add an arrived request to the scheduler."""
        request = self.make_request(record.name, record.arrival, self._prompts.of(record.arrival.prompt))
        self._live[record.name] = _Live(request, record, record.arrival.prompt)
        self.scheduler.add_request(request)

    def step(self) -> None:
        """Plan a step if one more may be in flight, and process the oldest result unless there is room for another step.

        Mirrors ``EngineCore.step_with_batch_queue``.
        """
        if self.scheduler.has_requests() and len(self._flights) < self.depth:
            flight = self._launch(self.scheduler.schedule(self._planned % self.interval != 0))
            self._planned += 1
            self._flights.append(flight)
            if flight.step.tokens and len(self._flights) < self.depth:
                return
        self._land(self._flights.popleft())

    def _launch(self, plan: SchedulerOutput) -> "_Flight":
        """Start a planned step on the hardware once the previous one is done."""
        start = max(self.clock.now, self._busy_until)
        if plan.total_num_scheduled_tokens:
            self._idle_steps = 0
            seconds = self.costs.seconds(_sequences(plan)) * self._noise.lognormvariate(0.0, self.noise)
        else:
            self._idle_steps += 1
            if self._idle_steps > STUCK:
                raise SimulationError(
                    f"the scheduler planned nothing for {STUCK} steps while {len(self._live)} requests wait: "
                    f"{', '.join(list(self._live)[:5])}"
                )
            # With nothing in flight, the host plans again after the fixed time of a step.
            seconds = 0.0 if self._flights else self.costs.achieved.step_seconds
        self._busy_until = start + seconds
        return _Flight(plan, self._forward(plan), Step(start, seconds, plan.num_scheduled_tokens))

    def _forward(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Return a token for each request whose known tokens are all computed after this step."""
        starts = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        names = list(plan.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name, count in plan.num_scheduled_tokens.items():
            live = self._live.get(name)
            if live is None:
                # The scheduler's internal request fills the prefix cache and generates nothing.
                sampled.append([])
                continue
            end = starts[name] + count
            if end > live.known:
                raise SimulationError(f"request {name}: scheduled up to token {end}, but it has {live.known}")
            sampled.append([TOKEN] if end == live.known else [])
            live.known += end == live.known
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)

    def _land(self, flight: "_Flight") -> None:
        """Pass a step's result to the scheduler and record the token times."""
        self.clock.advance(flight.step.start + flight.step.seconds)
        for outputs in self.scheduler.update_from_output(flight.plan, flight.result).values():
            for one in outputs.outputs:
                live = self._live[one.request_id]
                live.record.note(len(one.new_token_ids), self.clock.now)
                if one.finish_reason is not None:
                    if live.record.tokens != live.record.arrival.output:
                        asked = live.record.arrival.output
                        raise SimulationError(
                            f"request {one.request_id}: generated {live.record.tokens} tokens instead of {asked}"
                        )
                    live.record.preemptions = live.request.num_preemptions
                    del self._live[one.request_id]
        if flight.step.tokens:
            self._outcome.steps += 1
            self._outcome.computed += flight.plan.total_num_scheduled_tokens
            if self.watch is not None:
                self.watch(flight.step)


class _Prompts:
    """Shares one token list per prompt length, because a list of two million tokens takes 16 MiB."""

    def __init__(self) -> None:
        self._lists: dict[int, list[int]] = {}

    def of(self, length: int) -> list[int]:
        return self._lists.setdefault(length, [TOKEN] * length)


def _sequences(plan: SchedulerOutput) -> list[tuple[int, int]]:
    """Return the cached and new tokens of each scheduled request, for the cost model."""
    scheduled, cached = plan.num_scheduled_tokens, plan.scheduled_cached_reqs
    sequences = [(new.num_computed_tokens, scheduled[new.req_id]) for new in plan.scheduled_new_reqs]
    sequences += zip(cached.num_computed_tokens, (scheduled[name] for name in cached.req_ids), strict=True)
    return sequences
