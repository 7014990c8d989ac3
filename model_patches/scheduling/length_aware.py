"""Length-aware scheduling of one scheduler: its waiting queue, its plans, its measured steps.

Upstream's ``Scheduler.schedule`` stays as it is; what it finds when it looks is arranged here, before every step.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.next_set import NextSetPrefill
from ropeswitch.model_patches.scheduling.step_cost import STEP, Load, StepCost, chunk
from ropeswitch.model_patches.scheduling.step_plan import StepPlan
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue
from ropeswitch.model_patches.switch.settings import RopeSettings

# The default target in steps of one token: whatever a step costs beside its tokens is a small part of it. Never more than a
# reader of five tokens a second would notice.
TARGET_STEPS = 50
# So often the prefix cache is asked again, for so many of the oldest.
LOOK_SECONDS, LOOKS = 1.0, 8
LEAST_TARGET, MOST_TARGET = 0.02, 0.2


class LengthAware:
    """See the module's docstring.

    Args:
        scheduler: Our subclass of ``vllm.v1.core.sched.scheduler.Scheduler``, constructed; its ``clock`` gives seconds.
        settings: The engine's.

    Attributes:
        target: Seconds that a step should take while anything urgent runs or waits; known once calibrated.
    """

    def __init__(self, scheduler: Any, settings: RopeSettings) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._by_priority = scheduler.policy == SchedulingPolicy.PRIORITY
        self.queue = WaitingQueue(self._length, self._by_priority)
        scheduler.waiting = self.queue
        # Upstream would raise our thresholds.
        scheduler.adaptive_long_prefill_threshold = False
        self._flights: deque[tuple[SchedulerOutput, float, Load]] = deque()
        self._last_end = self._last_look = float("-inf")

    def calibrate(self, measured: Sequence[tuple[int, float]]) -> None:
        """Start from measured steps; must be called once before the first step is planned.

        Args:
            measured: Steps without context, as (tokens, seconds): one of 1 token and a longer one.
        """
        scheduler, settings = self._scheduler, self._settings
        shortest = min(measured)[1]
        suits = min(max(TARGET_STEPS * shortest, LEAST_TARGET), MOST_TARGET)
        self.target = settings.step_latency_target or suits
        self.cost = StepCost(measured, scheduler.vllm_config.model_config.get_hidden_size())
        self._plan = StepPlan(scheduler, self.queue, self.cost, self.target)
        self.admission = self._plan.admission
        self.next_set: NextSetPrefill | None = None
        if scheduler.cache_config.enable_prefix_caching and len(settings.ladder.sets) > 1:
            self.next_set = NextSetPrefill(scheduler, settings.ladder, self.cost)

    @property
    def _background(self) -> Request | None:
        return None if self.next_set is None else self.next_set.request

    def before_step(self) -> None:
        """Arrange the scheduler's state for the step that it is about to plan."""
        self._look_again()
        busy, spare = self._plan.plan(self._background)
        if self.next_set is not None:
            self.next_set.prepare(busy, spare)
        if not self._by_priority:
            # Upstream preempts from the end: what is cheapest to compute again.
            background = self._background
            self._scheduler.running.sort(key=lambda each: (each is background, -each.num_computed_tokens))

    def _look_again(self) -> None:
        """Look in the prefix cache again for those that wait longest: others may have filled it since they came."""
        now = self._scheduler.clock()
        if now - self._last_look > LOOK_SECONDS:
            self._last_look = now
            for entry in self.queue.by_age[:LOOKS]:
                self.queue.reorder(entry[3])

    def after_planning(self, output: SchedulerOutput, throttled: bool) -> None:
        """Note what the planned step will do, to learn from the time that it takes.

        Args:
            output: The step.
            throttled: Whether upstream's scheduler was told to plan no prefills.
        """
        counts = output.num_scheduled_tokens
        self._plan.scheduled(counts, throttled)
        load = STEP
        for req_id, count in counts.items():
            load += chunk(count, self._scheduler.requests[req_id].num_computed_tokens - count)
        self._flights.append((output, self._scheduler.clock(), load))

    def after_step(self, output: SchedulerOutput) -> None:
        """Learn from a step whose output is there; steps end in the order in which they were planned."""
        now = self._scheduler.clock()
        planned, start, load = self._flights.popleft()
        assert planned is output
        seconds = now - max(start, self._last_end)
        self._last_end = now
        if load.tokens and seconds > 0:
            self.cost.observe(load, seconds)

    def hold(self, request: Request) -> bool:
        """Whether a waiting request that upstream's scheduler would start must not be in this step."""
        return request in self._plan.held

    def expected_hit(self, request: Request) -> int:
        """Tokens of a request without blocks that the prefix cache has now."""
        manager = self._scheduler.kv_cache_manager
        if request.num_computed_tokens or not manager.prefix_cache_lookup_enabled(request):
            return 0
        hit: int = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]
        return hit

    def without_background(self, stats: SchedulerStats) -> SchedulerStats:
        """Take the internal request out of upstream's counts of requests."""
        background = self._background
        if background is not None:
            stats.num_running_reqs -= background in self._scheduler.running
            stats.num_waiting_reqs = max(stats.num_waiting_reqs - (background in self.queue), 0)
        return stats

    def report(self) -> dict[str, float]:
        """Figures for the server's metrics: the target in seconds, the predictions' relative error, tokens for next sets."""
        ahead = 0 if self.next_set is None else self.next_set.tokens
        return {"target_seconds": self.target, "error": self.cost.error, "next_set_tokens": ahead}

    def _length(self, request: Request) -> int:
        request.expected_hit = hit = self.expected_hit(request)
        return self.cost.length(request.num_tokens - hit, hit)
