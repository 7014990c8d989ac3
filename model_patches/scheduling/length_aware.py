"""The length-aware planner: plans every step of one engine, and learns from measured step times.

It reads the engine only through ``engine.py`` and changes nothing: ``scheduler.py`` applies its decisions.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, inf

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.decision import IDLE, StepDecision
from ropeswitch.model_patches.scheduling.engine import Limits, SchedulerEngine, StepView, chunks, split
from ropeswitch.model_patches.scheduling.next_set import NextSetPrefill
from ropeswitch.model_patches.scheduling.step_cost import STEP, Load, StepCost
from ropeswitch.model_patches.scheduling.step_plan import StepPlan
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue
from ropeswitch.model_patches.switch.placement import EngineLadder

# Default target as a multiple of a one-token step, so that a step's fixed cost is a small part of it.
TARGET_STEPS = 50
# Interval (seconds) and batch size (oldest waiting requests) for re-checking the prefix cache.
RECHECK_SECONDS, RECHECKS = 1.0, 8
# Bounds of the default target in seconds; at the upper bound a client still gets ten tokens per second.
LEAST_TARGET, MOST_TARGET = 0.02, 0.1


class LengthAware:
    """See the module docstring; ``by_priority`` puts a request's ``priority`` before length and age."""

    # Seconds that a step should take while anything urgent runs or waits; set by `calibrate`.
    target: float

    def __init__(self, engine: SchedulerEngine, by_priority: bool, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self.queue = WaitingQueue(self._look, by_priority, clock, lambda request: engine.placement(request).client)
        self._flights: deque[tuple[SchedulerOutput, float, Load]] = deque()
        self._last_end = self._last_recheck = float("-inf")
        self._decodes = STEP

    def calibrate(
        self, measured: Sequence[tuple[int, float]], limits: Limits, hidden_size: int, target: float | None,
        ladder: EngineLadder | None,
    ) -> None:  # fmt: skip
        """Set the latency target and the cost model; call once, before the first step.

        ``measured`` are steps without context, as (tokens, seconds): one of 1 token and a longer one. They set the
        target if ``target`` (in seconds) is None. Without a ladder there is no background prefill.
        """
        self.target = target or min(max(TARGET_STEPS * min(measured)[1], LEAST_TARGET), MOST_TARGET)
        self.cost = StepCost(measured, hidden_size)
        self._limits = limits
        self._plan = StepPlan(limits, self._engine, self.queue, self.cost, self.target)
        self.next_set: NextSetPrefill | None = None
        if ladder is not None:
            self.next_set = NextSetPrefill(limits, self._engine, self.queue, ladder, self.cost)

    @property
    def background(self) -> Request | None:
        """The internal request of background prefill, or None."""
        return None if self.next_set is None else self.next_set.request

    @property
    def idle(self) -> bool:
        """Whether the results of all planned steps have arrived."""
        return not self._flights

    def decide(self, view: StepView) -> StepDecision:
        """Plan the next step."""
        self._recheck_cache()
        self._decodes = view.decodes
        step = self._plan.plan(view)
        if self.next_set is None:
            return step
        background = self.next_set.decide(view, step, self._plan.admission)
        return step if background is IDLE else replace(step, background=background)

    def _recheck_cache(self) -> None:
        """Re-check the prefix cache for the oldest waiting requests: others may have filled it since they arrived."""
        now = self._clock()
        if now - self._last_recheck > RECHECK_SECONDS:
            self._last_recheck = now
            for entry in list(self.queue.in_turn())[:RECHECKS]:
                self.queue.reorder(entry[3])

    def after_planning(self, output: SchedulerOutput, computed: Callable[[], list[int]], throttled: bool) -> None:
        """Record the load of a planned step, for later comparison with its measured time.

        ``computed`` returns the number of computed tokens of each of its requests, including this step's; ``throttled``
        is upstream's ``throttle_prefills``.
        """
        counts, load = output.num_scheduled_tokens, self._decodes
        self._plan.scheduled(counts, throttled)
        # No decoding request gets more than its own tokens, so without prefills, equal totals mean that all got theirs.
        alone = not self._plan.chosen_any and self.background is None
        if not alone or (len(counts), output.total_num_scheduled_tokens) != (load.sequences, load.tokens):
            tokens = np.fromiter(counts.values(), np.int64, len(counts))
            load = STEP + chunks(tokens, np.array(computed(), dtype=np.int64) - tokens)
        self._flights.append((output, self._clock(), load))

    def after_step(self, output: SchedulerOutput) -> None:
        """Learn from a finished step; steps finish in the order they were planned."""
        now = self._clock()
        planned, start, load = self._flights.popleft()
        assert planned is output
        seconds = now - max(start, self._last_end)
        self._last_end = now
        if load.tokens and seconds > 0:
            self.cost.observe(load, seconds)

    def report(self, running: Sequence[Request]) -> dict[str, float]:
        """Return figures for the server's metrics (``server/metrics/scheduling_metrics.py``)."""
        return {
            "target_seconds": self.target,
            "error": self.cost.error,
            "next_set_tokens": 0 if self.next_set is None else self.next_set.tokens,
            "remaining_prefill_seconds": self._remaining_prefill(running),
        }

    def _remaining_prefill(self, running: Sequence[Request]) -> float:
        """Predict the seconds to compute all remaining prompt tokens in steps of the target, with their fixed cost."""
        prefills, _ = split(running, self.background)
        pairs = [(each.num_tokens, each.num_computed_tokens) for each in prefills]
        # Waiting requests that resume, or whose keys come from elsewhere, already have computed tokens.
        waiting = (entry[3] for entry in self.queue.by_length)
        pairs += [(each.num_tokens, max(each.num_computed_tokens, self.queue.arrival(each).hit)) for each in waiting]
        if not pairs:
            return 0.0
        tokens, before = np.array(pairs, dtype=np.int64).T
        work = self.cost.seconds(chunks(tokens - before, before))
        fixed = self.cost.seconds(STEP)
        return work + fixed * ceil(work / max(self.target - fixed, fixed))

    def prefill_seconds(self, request: Request) -> float | None:
        """Predict the seconds of a request's remaining prompt, if no other prompt is computed meanwhile; None at first.

        The decoding requests take their share of each step.
        """
        if not self.cost.fitted:
            return None
        before = max(request.num_computed_tokens, self.queue.arrival(request).hit)
        if (left := request.num_prompt_tokens - before) <= 0:
            return 0.0
        middle = before + left / 2
        work = self.cost.seconds(Load(tokens=left, products=left * middle))
        busy = self.cost.seconds(self._decodes)
        # Each step reads the keys of the prompt so far again.
        reading = self.cost.seconds(Load(sequences=1, context=middle))
        room = self._plan.room(self.target, busy) - reading
        steps = max(work / room if room > 0 else inf, left / self._limits.chunk)
        return work + (busy + reading) * ceil(min(steps, left / self._limits.least_chunk))

    def _look(self, request: Request) -> tuple[int, int]:
        hit = self._engine.cache_hit(request)
        return self.cost.length(request.num_tokens - hit, hit), hit
