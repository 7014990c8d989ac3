"""``vllm.v1.core.sched.scheduler.Scheduler``: the core's scheduler, whose steps are planned by length.

replaces: the core's ``LadderScheduler`` and ``LadderAsyncScheduler``, through ``scheduler_config.scheduler_cls``.
why: vLLM gives each step's budget to whoever came first, so a short request waits for a long prompt before it.
what differs: docs/scheduling.md describes it. Upstream's ``schedule`` itself stays as it is.
limits: none known.
when it can go: when vLLM plans steps by their predicted time.
"""

import time
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.length_aware import LengthAware
from ropeswitch.model_patches.switch.scheduler import (
    LadderAsyncScheduler,
    LadderScheduler,
    LadderSchedulerOutput,
    build,
)
from ropeswitch.model_patches.switch.settings import settings_of


def make_scheduler(vllm_config: VllmConfig, **kwargs: Any) -> Scheduler:
    """As the core's ``make_scheduler``, with length-aware scheduling; named by ``scheduler_config.scheduler_cls``."""
    return build(LengthAwareScheduler, LengthAwareAsyncScheduler, vllm_config, **kwargs)


class LengthAwareScheduler(LadderScheduler):
    """The synchronous scheduler; see the module's docstring."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        settings = settings_of(vllm_config)
        assert settings is not None
        self.clock = time.monotonic
        self.length_aware = LengthAware(self, settings)

    def add_request(self, request: Request) -> None:
        request.queued_at = self.clock()
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> LadderSchedulerOutput:
        output = super().schedule(throttle_prefills)
        self.length_aware.after_planning(output, throttle_prefills)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        self.length_aware.after_step(scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        stats = super().make_stats(*args, **kwargs)
        return None if stats is None else self.length_aware.without_background(stats)

    def _prepare_step(self) -> None:
        super()._prepare_step()
        self.length_aware.before_step()

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        if self.length_aware.hold(request):
            return False
        return super()._handle_blocked_waiting_request(request)

    def _move_up(self, request: Request) -> None:
        super()._move_up(request)
        self.length_aware.queue.reorder(request)


class LengthAwareAsyncScheduler(LengthAwareScheduler, LadderAsyncScheduler):
    """The asynchronous scheduler; each ``super()`` above reaches the core's first."""
