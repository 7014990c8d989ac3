"""``vllm.v1.core.sched.scheduler.Scheduler``: the core's scheduler with length-aware steps.

replaces: the core's ``LadderScheduler`` and ``LadderAsyncScheduler``, through ``scheduler_config.scheduler_cls``.
why: vLLM gives each step's budget to the oldest request, so a short request waits for a long prompt ahead of it.
what differs: see docs/scheduling.md. Upstream's ``schedule`` itself is unchanged.
limits: none known.
when it can go: when vLLM plans steps by their predicted time.
"""

import copy
import time
from collections.abc import Callable, Sequence, Set
from operator import attrgetter
from typing import Any

from vllm.config import SchedulerConfig, VllmConfig
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from ropeswitch.model_patches.scheduling.decision import StepDecision
from ropeswitch.model_patches.scheduling.engine import SchedulerEngine
from ropeswitch.model_patches.scheduling.length_aware import LengthAware
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue
from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.engine.scheduler import (
    LadderAsyncScheduler,
    LadderScheduler,
    LadderSchedulerOutput,
    build,
)


def make_scheduler(vllm_config: VllmConfig, **kwargs: Any) -> Scheduler:
    """Make the core's scheduler with length-aware steps; ``scheduler_config.scheduler_cls`` names this function."""
    return build(LengthAwareScheduler, LengthAwareAsyncScheduler, vllm_config, **kwargs)


class LengthAwareScheduler(LadderScheduler):
    """The synchronous scheduler; see the module docstring."""

    waiting: WaitingQueue
    scheduler_config: SchedulerConfig

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        settings = settings_of(vllm_config)
        assert settings is not None
        self._settings = settings
        self.clock: Callable[[], float] = time.monotonic
        self._engine = SchedulerEngine(self)
        self._by_priority = self.policy == SchedulingPolicy.PRIORITY
        self.length_aware = LengthAware(self._engine, self._by_priority, lambda: self.clock())
        self.waiting = self.length_aware.queue
        self._held: Set[Request] = frozenset()
        # Upstream's schedule() reads the longest chunk from its config at every step. The decision's limit goes into the
        # scheduler's own copy, so that the engine's config stays as the user set it.
        self.scheduler_config = copy.copy(self.scheduler_config)
        # Otherwise upstream raises our thresholds.
        self.adaptive_long_prefill_threshold = False

    def calibrate(self, measured: Sequence[tuple[int, float]]) -> None:
        """Calibrate the planner with measured steps; see ``LengthAware.calibrate``."""
        self.length_aware.calibrate(
            measured,
            self._engine.limits(),
            self.vllm_config.model_config.get_hidden_size(),
            self._settings.step_latency_target,
            self.ladder if self.cache_config.enable_prefix_caching else None,
        )

    def schedule(self, throttle_prefills: bool = False) -> LadderSchedulerOutput:
        output = super().schedule(throttle_prefills)

        def computed() -> list[int]:
            return [self.requests[req_id].num_computed_tokens for req_id in output.num_scheduled_tokens]

        self.length_aware.after_planning(output, computed, throttle_prefills)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        self.length_aware.after_step(scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _make_cached_request_data(
        self, running_reqs: list[Request], resumed_reqs: list[Request], *args: Any
    ) -> CachedRequestData:
        if not self.use_v2_model_runner:
            # Otherwise the V1 runner is sent all tokens of a prefill that was held for a step; it reads only output tokens.
            self.prev_step_scheduled_req_ids.update(
                each.request_id
                for each in self._inflight_prefills.difference(resumed_reqs)
                if not each.num_output_tokens
            )
        return super()._make_cached_request_data(running_reqs, resumed_reqs, *args)

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """Return upstream's statistics without the internal request."""
        stats = super().make_stats(*args, **kwargs)
        background = self.length_aware.background
        if stats is not None and background is not None:
            stats.num_running_reqs -= background in self.running
            stats.num_waiting_reqs = max(stats.num_waiting_reqs - (background in self.waiting), 0)
        return stats

    def _prepare_step(self) -> None:
        super()._prepare_step()
        self._held = frozenset()
        planner = self.length_aware
        self._apply(planner.decide(self._engine.view(self.clock(), planner.background, planner.idle)))

    def _apply(self, decision: StepDecision) -> None:
        """Set the state that upstream's ``schedule()`` reads, so that it schedules exactly the decision's requests."""
        budget, offered, chunk = decision.budget, decision.offered, decision.chunk
        held, background = set(decision.held), decision.background
        if background.finish is not None:
            self.finish_requests(background.finish.request_id, RequestStatus.FINISHED_ABORTED)
        if background.start is not None:
            self.waiting.internal = background.start
            self.add_request(background.start)
        if background.request is not None:
            if background.tokens:
                budget, chunk = budget + background.tokens, background.tokens
                offered += (background.request,) if background.request in self.waiting else ()
            elif background.request.status == RequestStatus.RUNNING:
                held.add(background.request)
        self._held = held
        for request in held:
            # The maximum: pipeline parallelism may have set a later step.
            request.next_decode_eligible_step = max(request.next_decode_eligible_step, self.current_step + 2)
        self.scheduler_config.long_prefill_token_threshold = chunk
        self.max_num_scheduled_tokens = budget
        self.waiting.offer(offered)
        if decision.sort and not self._by_priority:
            # Upstream preempts from the end: the internal request first, then the cheapest to recompute.
            self.running.sort(key=attrgetter("num_computed_tokens"), reverse=True)
            if background.request is not None and background.request in self.running:
                self.running.remove(background.request)
                self.running.append(background.request)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        if request in self._held:
            return False
        return super()._handle_blocked_waiting_request(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.waiting.ended(request)
        return super()._free_request(request, *args, **kwargs)

    def _move_up(self, request: Request) -> None:
        super()._move_up(request)
        self.waiting.reorder(request)


class LengthAwareAsyncScheduler(LengthAwareScheduler, LadderAsyncScheduler):
    """The asynchronous scheduler; each ``super()`` above resolves to the core's asynchronous scheduler first."""
