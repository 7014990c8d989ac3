"""Length-aware scheduling of one engine: decides every step, and learns from the time that steps take.

It sees the engine through ``view.py`` alone and changes nothing of it: ``scheduler.py`` applies its decisions.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.scheduling.decision import IDLE, StepDecision
from ropeswitch.model_patches.scheduling.next_set import NextSetPrefill
from ropeswitch.model_patches.scheduling.step_cost import STEP, Load, StepCost
from ropeswitch.model_patches.scheduling.step_plan import StepPlan
from ropeswitch.model_patches.scheduling.view import Engine, Limits, StepView, chunks
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue

# The default target in steps of one token: whatever a step costs beside its tokens is a small part of it. Never more than a
# reader of five tokens a second would notice.
TARGET_STEPS = 50
# So often the prefix cache is asked again, for so many of the oldest.
LOOK_SECONDS, LOOKS = 1.0, 8
LEAST_TARGET, MOST_TARGET = 0.02, 0.2


class LengthAware:
    """See the module's docstring.

    Args:
        engine: Answers questions about single requests.
        by_priority: Whether a request's ``priority`` goes before all else.
        clock: Seconds.

    Attributes:
        queue: The engine's waiting queue.
        target: Seconds that a step should take while anything urgent runs or waits; known once calibrated.
    """

    def __init__(self, engine: Engine, by_priority: bool, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self.queue = WaitingQueue(self._look, by_priority, clock)
        self._flights: deque[tuple[SchedulerOutput, float, Load]] = deque()
        self._last_end = self._last_look = float("-inf")
        self._decodes = STEP

    def calibrate(
        self, measured: Sequence[tuple[int, float]], limits: Limits, hidden_size: int, target: float | None,
        ladder: FactorLadder | None,
    ) -> None:  # fmt: skip
        """Start from measured steps; must be called once before the first step is planned.

        Args:
            measured: Steps without context, as (tokens, seconds): one of 1 token and a longer one.
            limits: The engine's.
            hidden_size: The model's width.
            target: Seconds that a step should take, or None for what suits the hardware.
            ladder: The factor sets whose keys are computed ahead, or None to compute none ahead.
        """
        suits = min(max(TARGET_STEPS * min(measured)[1], LEAST_TARGET), MOST_TARGET)
        self.target = target or suits
        self.cost = StepCost(measured, hidden_size)
        self._plan = StepPlan(limits, self._engine, self.queue, self.cost, self.target)
        self.next_set: NextSetPrefill | None = None
        if ladder is not None:
            self.next_set = NextSetPrefill(limits, self._engine, self.queue, ladder, self.cost)

    @property
    def background(self) -> Request | None:
        """The internal request for a next set, if there is one."""
        return None if self.next_set is None else self.next_set.request

    @property
    def settled(self) -> bool:
        """Whether the results of all planned steps are there."""
        return not self._flights

    def decide(self, view: StepView) -> StepDecision:
        """Plan a step."""
        self._look_again()
        self._decodes = view.decodes
        step = self._plan.plan(view)
        if self.next_set is None:
            return step
        background = self.next_set.decide(view, step, self._plan.admission)
        return step if background is IDLE else replace(step, background=background)

    def _look_again(self) -> None:
        """Look in the prefix cache again for those that wait longest: others may have filled it since they came."""
        now = self._clock()
        if now - self._last_look > LOOK_SECONDS:
            self._last_look = now
            for entry in self.queue.by_age[:LOOKS]:
                self.queue.reorder(entry[3])

    def after_planning(self, output: SchedulerOutput, computed: Callable[[], list[int]], throttled: bool) -> None:
        """Note what the planned step will do, to learn from the time that it takes.

        Args:
            output: The step.
            computed: Returns the computed tokens of each of its requests, this step's included.
            throttled: Whether upstream's scheduler was told to plan no prefills.
        """
        counts, load = output.num_scheduled_tokens, self._decodes
        self._plan.scheduled(counts, throttled)
        # No request gets more than its decode, so equal totals mean equal steps where no other request got any.
        alone = not self._plan.chosen_any and self.background is None
        if not alone or (len(counts), output.total_num_scheduled_tokens) != (load.sequences, load.tokens):
            tokens = np.fromiter(counts.values(), np.int64, len(counts))
            load = STEP + chunks(tokens, np.array(computed(), dtype=np.int64) - tokens)
        self._flights.append((output, self._clock(), load))

    def after_step(self, output: SchedulerOutput) -> None:
        """Learn from a step whose output is there; steps end in the order in which they were planned."""
        now = self._clock()
        planned, start, load = self._flights.popleft()
        assert planned is output
        seconds = now - max(start, self._last_end)
        self._last_end = now
        if load.tokens and seconds > 0:
            self.cost.observe(load, seconds)

    def report(self) -> dict[str, float]:
        """Figures for the server's metrics: the target in seconds, the predictions' relative error, tokens for next sets."""
        ahead = 0 if self.next_set is None else self.next_set.tokens
        return {"target_seconds": self.target, "error": self.cost.error, "next_set_tokens": ahead}

    def _look(self, request: Request) -> tuple[int, int]:
        hit = self._engine.cache_hit(request)
        return self.cost.length(request.num_tokens - hit, hit), hit
