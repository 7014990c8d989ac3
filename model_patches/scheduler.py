"""``vllm.v1.core.sched.scheduler.Scheduler``: subclassed to move a request to its next factor set when it outgrows one.

replaces: the scheduler, through ``scheduler_config.scheduler_cls``.
why: all of a sequence's cached keys must be in one set, so the step that makes it longer than its set must compute the
    whole sequence again under the next one.
what differs: such a request is preempted before the step is planned, hashed again under its new set, and, being first in
    the queue, prefilled in the same step. Draft tokens that would pass the set's end are dropped. The step's output says
    which set each new or resumed request is in.
limits: the synchronous scheduler (the one vLLM uses on CPUs).
when it can go: when vLLM switches LongRoPE factors per request.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request, RequestStatus, StreamingUpdate

from ropeswitch.model_patches.registry import apply_all
from ropeswitch.model_patches.request_set import assign, assigned_set, forced_set, wanted_set
from ropeswitch.model_patches.settings import settings_of
from ropeswitch.model_patches.support import check_engine


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
    apply_all()
    check_engine(vllm_config)
    return LadderScheduler(vllm_config, **kwargs)


class LadderScheduler(Scheduler):
    """See the module's docstring."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        settings = settings_of(vllm_config)
        assert settings is not None
        self.ladder = settings.ladder
        # Running requests whose next token is beyond their set, in the order in which they got there.
        self._outgrown: list[Request] = []

    def add_request(self, request: Request) -> None:
        if not hasattr(request, "rope_set"):
            assign(request, wanted_set(request, self.ladder))
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._switch_outgrown()
        output = super().schedule(throttle_prefills)
        placed = [new.req_id for new in output.scheduled_new_reqs]
        placed += output.scheduled_cached_reqs.resumed_req_ids
        sets = {req_id: assigned_set(self.requests[req_id]) for req_id in placed}
        return LadderSchedulerOutput(**vars(output), rope_sets=sets)

    def _switch_outgrown(self) -> None:
        """Preempt every running request that outgrew its set, so that this step prefills it under the next one."""
        outgrown, self._outgrown = self._outgrown, []
        # Each goes to the head of the queue: backwards, so that the first to get there stays first.
        for request in reversed(outgrown):
            if request.is_finished():
                continue
            if request.status == RequestStatus.RUNNING:
                # Its newest token has just come back, so no step that writes its keys can be under way.
                assert request.num_in_flight_tokens == 0
                self.running.remove(request)
                self._preempt_request(request, time.monotonic())
                self.prev_step_scheduled_req_ids.discard(request.request_id)
            assign(request, wanted_set(request, self.ladder))

    def _room(self, request: Request) -> int | None:
        """Tokens that the request can still grow by in its set (negative: outgrown), or None where its set is forced."""
        if forced_set(request.sampling_params) is not None:
            return None
        return self.ladder.sets[assigned_set(request)].max_length - request.num_tokens

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        kept, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if not stopped and (room := self._room(request)) is not None and room < 0:
            self._outgrown.append(request)
        return kept, stopped

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        super().update_draft_token_ids(draft_token_ids)
        for req_id in draft_token_ids.req_ids:
            request = self.requests.get(req_id)
            if request is not None and (room := self._room(request)) is not None:
                del request.spec_token_ids[max(room, 0) :]

    def _update_request_as_session(self, session: Request, update: StreamingUpdate) -> None:
        super()._update_request_as_session(session, update)
        if (index := wanted_set(session, self.ladder)) != assigned_set(session):
            self._free_request_blocks(session)
            session.num_computed_tokens = 0
            assign(session, index)
