"""``vllm.v1.core.sched.scheduler.Scheduler``: subclassed to move a request to its next factor set when it outgrows one.

replaces: the scheduler, and ``async_scheduler.AsyncScheduler``, through ``scheduler_config.scheduler_cls``.
why: all of a sequence's cached keys must be in one set, so the step that makes it longer than its set must compute the
    whole sequence again under the next one.
what differs: a request that may outgrow its set is held back while tokens of it are in flight, so that its length is
    known. If it did, it is preempted before the step is planned, hashed again under its new set, and, being first in the
    queue, prefilled in the same step. Draft tokens that would pass the set's end are not scheduled. The step's output says
    which set each new or resumed request is in. The first token after a switch brings prefill statistics, as the first of
    all does; server/length_metrics/outputs.py looks for them, and upstream's front end for those of the first token alone.
limits: one pause, as long as the pipeline is deep, at every switch under asynchronous scheduling. The switch takes more
    steps where upstream's own rules for the waiting queue say so: priorities, throttled prefills, no free blocks.
when it can go: when vLLM switches LongRoPE factors per request.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.request import Request, RequestStatus, StreamingUpdate

from ropeswitch.model_patches.switch.patching import patch_process
from ropeswitch.model_patches.switch.request_set import assign, assigned_set, forced_set, wanted_set
from ropeswitch.model_patches.switch.settings import settings_of


@dataclass
class LadderSchedulerOutput(SchedulerOutput):
    """A step's plan that also says which factor set each new or resumed request is in, by request id."""

    rope_sets: dict[str, int] = field(default_factory=dict)


def make_scheduler(vllm_config: VllmConfig, **kwargs: Any) -> Scheduler:
    """Patch this engine process and build its scheduler; named by ``scheduler_config.scheduler_cls``.

    Raises:
        UnsupportedError: when the engine has no ladder, or a feature that is not patched.
        RegistryError: when the installed vLLM is not the one that the patches were written for.
    """
    return build(LadderScheduler, LadderAsyncScheduler, vllm_config, **kwargs)


def build(
    scheduler: type[Scheduler], async_scheduler: type[Scheduler], vllm_config: VllmConfig, **kwargs: Any
) -> Scheduler:
    """As :func:`make_scheduler`, from one of two classes: for synchronous and for asynchronous scheduling."""
    patch_process(vllm_config)
    chosen = async_scheduler if vllm_config.scheduler_config.async_scheduling else scheduler
    return chosen(vllm_config, **kwargs)


class LadderScheduler(Scheduler):
    """The synchronous scheduler; see the module's docstring."""

    prev_step_scheduled_req_ids: set[str]

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        settings = settings_of(vllm_config)
        assert settings is not None
        self.ladder = settings.ladder

    def add_request(self, request: Request) -> None:
        if not hasattr(request, "rope_set"):
            assign(request, wanted_set(request, self.ladder))
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> LadderSchedulerOutput:
        self._prepare_step()
        output = super().schedule(throttle_prefills)
        placed = [new.req_id for new in output.scheduled_new_reqs]
        placed += output.scheduled_cached_reqs.resumed_req_ids
        sets = {req_id: assigned_set(self.requests[req_id]) for req_id in placed}
        for req_id in placed:
            self._tell_switch(self.requests[req_id], output.num_scheduled_tokens[req_id])
        for new in output.scheduled_new_reqs:
            # All that the V2 runner hands on to its model state (gpu_model_state.py).
            new.rope_set = sets[new.req_id]
        return LadderSchedulerOutput(**vars(output), rope_sets=sets)

    def _make_cached_request_data(self, running_reqs: list[Request], *args: Any) -> CachedRequestData:
        # The V1 runner would be sent all tokens of a prefill that was held for a step, of which it reads the output alone.
        silent = {each.request_id for each in running_reqs if not each.num_output_tokens + each.num_output_placeholders}
        before = self.prev_step_scheduled_req_ids
        self.prev_step_scheduled_req_ids = before | silent
        data = super()._make_cached_request_data(running_reqs, *args)
        self.prev_step_scheduled_req_ids = before
        return data

    def _prepare_step(self) -> None:
        """Preempt the running requests that outgrew their sets, so that this step prefills them under the next ones."""
        outgrown = []
        for request in self.running:
            # Placeholders stand for tokens in flight: drafts among them may yet be rejected.
            if request.num_tokens + request.num_output_placeholders <= self._end(request):
                continue
            if request.num_in_flight_tokens:
                # The largest: a pipeline may have it wait longer.
                request.next_decode_eligible_step = max(request.next_decode_eligible_step, self.current_step + 2)
            else:
                outgrown.append(request)
        # Each goes to the head of the queue: backwards, so that the first stays first.
        for request in reversed(outgrown):
            self.running.remove(request)
            self._preempt_request(request, time.monotonic())
            self.prev_step_scheduled_req_ids.discard(request.request_id)
            if self._pause_state == PauseState.PAUSED_NEW:
                # What was running when the engine was paused may finish, and only this queue is served until it is resumed.
                self.waiting.remove_request(request)
                self.kv_holding_waiting.prepend_request(request)

    def _end(self, request: Request) -> float:
        """The most tokens that the request may have in its set."""
        if forced_set(request.sampling_params) is not None:
            return float("inf")
        return self.ladder.sets[assigned_set(request)].max_length

    def _move_up(self, request: Request) -> None:
        """Put a request that holds no keys into the set of its present length."""
        if request.num_tokens > self._end(request):
            assign(request, wanted_set(request, self.ladder))
            request.moved_up = True

    def _tell_switch(self, request: Request, scheduled: int) -> None:
        """Have the next output of a request that moved up tell how much of it is computed again in its new set.

        Args:
            request: One that this step starts or resumes.
            scheduled: Its tokens in this step, which are counted as computed already.
        """
        if not getattr(request, "moved_up", False):
            return
        request.moved_up = False
        # All but the last sampled token, whose keys would be computed anyway.
        before = request.num_tokens - 1
        cached = min(request.num_computed_tokens - scheduled, before)
        request.prefill_stats = PrefillStats()
        request.prefill_stats.set(before, cached, 0)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        self._move_up(request)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        # Slots were allocated for these drafts too; what is left unused serves the next step.
        for req_id in list(scheduler_output.scheduled_spec_decode_tokens):
            request, drafts = self.requests[req_id], scheduler_output.scheduled_spec_decode_tokens[req_id]
            length = request.num_computed_tokens + scheduler_output.num_scheduled_tokens[req_id]
            surplus = min(int(max(length - self._end(request), 0)), len(drafts))
            scheduler_output.num_scheduled_tokens[req_id] -= surplus
            scheduler_output.total_num_scheduled_tokens -= surplus
            if surplus == len(drafts):
                del scheduler_output.scheduled_spec_decode_tokens[req_id]
            elif surplus:
                scheduler_output.scheduled_spec_decode_tokens[req_id] = drafts[:-surplus]
        super()._update_after_schedule(scheduler_output)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        kept, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        # One that was preempted while these tokens were in flight moves up where it waits.
        if not stopped and request.status == RequestStatus.PREEMPTED:
            self._move_up(request)
        return kept, stopped

    def _update_request_as_session(self, session: Request, update: StreamingUpdate) -> None:
        super()._update_request_as_session(session, update)
        if (index := wanted_set(session, self.ladder)) != assigned_set(session):
            self._free_request_blocks(session)
            session.num_computed_tokens = 0
            assign(session, index)


class LadderAsyncScheduler(LadderScheduler, AsyncScheduler):
    """The asynchronous scheduler, which plans a step while the last one runs; each ``super()`` above reaches it first."""
