"""``vllm.v1.core.sched.scheduler.Scheduler``: subclassed to move a request to its next factor set when it outgrows one.

replaces: the scheduler, and ``async_scheduler.AsyncScheduler``, through ``scheduler_config.scheduler_cls``.
why: all cached keys of a sequence must be in one set, so the step that makes it longer than its set must recompute the
    whole sequence under the next set.
what differs: a request that may outgrow its set is held back while it has tokens in flight, so that its length is known. If
    it has outgrown the set, it is preempted before the step is planned, rehashed under its new set and put first in the
    queue, so the same step prefills it. Draft tokens past the set's end are not scheduled. The step's output names the set
    of each new or resumed request. Blocks that a preempted request would have filled are not cached. The first token after a
    switch carries prefill statistics, like a request's first token; server/metrics/outputs.py reads both; upstream's front
    end reads only the first token's.
limits: under asynchronous scheduling every switch waits for the steps in flight, and with a KV connector for one more step.
    Upstream's rules for the waiting queue may delay it further: priorities, throttled prefills, no free blocks.
when it can go: when vLLM switches LongRoPE factors per request.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus, StreamingUpdate

from ropeswitch.model_patches.switch.config.settings import RESERVE, settings_of
from ropeswitch.model_patches.switch.engine.patching import patch_process
from ropeswitch.model_patches.switch.kv.connectors import forget
from ropeswitch.model_patches.switch.placement import EngineLadder, Placement, place, placement_of

# Maximum steps between two checks of a running request against its set's end; bounds the entries of finished requests.
MOST_STEPS = 512


@dataclass
class LadderSchedulerOutput(SchedulerOutput):
    """A step's plan with the factor set of each new or resumed request: its index, by request id."""

    rope_sets: dict[str, int] = field(default_factory=dict)


def make_scheduler(vllm_config: VllmConfig, **kwargs: Any) -> Scheduler:
    """Patch this engine process and build its scheduler; ``scheduler_config.scheduler_cls`` names this function."""
    return build(LadderScheduler, LadderAsyncScheduler, vllm_config, **kwargs)


def build(
    scheduler: type[Scheduler], async_scheduler: type[Scheduler], vllm_config: VllmConfig, **kwargs: Any
) -> Scheduler:
    """Like :func:`make_scheduler`, with the given classes for synchronous and asynchronous scheduling."""
    patch_process(vllm_config)
    chosen = async_scheduler if vllm_config.scheduler_config.async_scheduling else scheduler
    return chosen(vllm_config, **kwargs)


class LadderScheduler(Scheduler):
    """The synchronous scheduler; see the module docstring."""

    prev_step_scheduled_req_ids: set[str]
    # Of `--prefill-schedule-interval`: 0.32.0 has it for data parallelism only, through `throttle_prefills`.
    local_prefill_interval = 1
    last_prefill_step = 0

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        settings = settings_of(vllm_config)
        assert settings is not None
        self.ladder = EngineLadder.of(settings, self.max_model_len)
        # Where each request is on it, by id; a request carries the same.
        self.placements: dict[str, Placement] = {}
        # Maximum tokens that a request grows by per step.
        self._growth = 1 + self.num_spec_tokens
        # Step after which each running request is next checked against its set's end, by id; and the ids by that step.
        self._due: dict[str, int] = {}
        self._checks: dict[int, set[str]] = {}
        # Waiting requests that may still outgrow their set, because they have tokens in flight.
        self._draining: set[Request] = set()
        # Requests whose next output must report the recomputed tokens.
        self._moved_up: set[str] = set()

    def add_request(self, request: Request) -> None:
        if request.abort_immediately:
            # vLLM itself makes such a request, which runs no step, so that a KV connector learns of one that was rejected.
            self._place(request, place(self.ladder, 1, client_salt=request.cache_salt))
        elif request.request_id not in self.requests:
            self.placements[request.request_id] = placement_of(request)
            # Wherever it was placed, it runs in the set of its length.
            self._move_up(request)
        if not isinstance(request.kv_transfer_params, Mapping):
            # Clients may send other types, which no connector could read.
            request.kv_transfer_params = None
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> LadderSchedulerOutput:
        self._prepare_step()
        output = super().schedule(throttle_prefills)
        # Upstream moves requests that a connector holds back to the other queue.
        self._serve_while_paused()
        placed = [new.req_id for new in output.scheduled_new_reqs] + list(output.scheduled_cached_reqs.resumed_req_ids)
        sets = {req_id: self.placements[req_id].index for req_id in placed}
        for req_id in placed:
            self._report_switch(self.requests[req_id], output.num_scheduled_tokens[req_id])
            self._check_after(req_id, self.current_step)
        return LadderSchedulerOutput(**vars(output), rope_sets=sets)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        # Tokens that were in flight when their request was preempted may take it past its set's end.
        for request in list(self._draining):
            if request.status == RequestStatus.PREEMPTED:
                self._move_up(request)
            if request.status != RequestStatus.PREEMPTED or not request.num_in_flight_tokens:
                self._draining.remove(request)
        return outputs

    def _prepare_step(self) -> None:
        """Preempt running requests that have outgrown their sets, so that this step prefills them under the next ones."""
        outgrown = []
        for req_id in self._checks.pop(self.current_step, ()):
            request = self.requests.get(req_id)
            if self._due.get(req_id) != self.current_step:
                continue
            if request is None or request.status != RequestStatus.RUNNING:
                del self._due[req_id]
                continue
            # Placeholders stand for tokens in flight, some of them drafts that may be rejected.
            left = self._end(request) - request.num_tokens - request.num_output_placeholders
            if left < 0 and not request.num_in_flight_tokens:
                outgrown.append(request)
                continue
            if left < 0:
                # The later step: pipeline parallelism may make the request wait longer.
                request.next_decode_eligible_step = max(request.next_decode_eligible_step, self.current_step + 2)
            # Under synchronous scheduling one step is in flight, without placeholders for its tokens.
            steps = int(min(left / self._growth, MOST_STEPS)) - 1
            self._check_after(req_id, self.current_step + max(steps, 1))
        if len(outgrown) > 1:
            outgrown.sort(key=self.running.index)
        # Each goes to the head of the queue, so reverse order keeps the first one first.
        for request in reversed(outgrown):
            self.running.remove(request)
            self._preempt_request(request, time.monotonic())
            self.prev_step_scheduled_req_ids.discard(request.request_id)
        if self.local_prefill_interval > 1 and self._recomputes():
            # The interval is for prompts; this is an answer that someone is reading.
            self.last_prefill_step -= self.local_prefill_interval
        self._serve_while_paused()

    def _recomputes(self) -> bool:
        """Whether an answer has tokens to recompute under its next set, or after a preemption."""
        return bool(self._moved_up) or any(it.is_prefill_chunk and it.num_output_tokens for it in self.running)

    def _serve_while_paused(self) -> None:
        """Move switched requests to the only queue served during a pause; requests that ran before it may finish."""
        if self._pause_state == PauseState.PAUSED_NEW:
            for request in reversed([each for each in self.waiting if each.request_id in self._moved_up]):
                self.waiting.remove_request(request)
                self.kv_holding_waiting.prepend_request(request)

    def _check_after(self, req_id: str, step: int) -> None:
        """Have a running request checked against its set's end before the step after ``step``."""
        self._due[req_id] = step
        self._checks.setdefault(step, set()).add(req_id)

    def _end(self, request: Request) -> float:
        """Return the maximum tokens that the request may have in its set; infinite for a forced set."""
        placement = self.placements[request.request_id]
        return float("inf") if placement.forced else float(self.ladder.end(placement.index))

    def _move_up(self, request: Request) -> None:
        """Move a request that holds no keys into the set it needs now, if it has outgrown its set."""
        length = min(request.num_tokens, self.ladder.sets.max_length)
        if length <= self._end(request):
            return
        before = self.placements[request.request_id]
        self._place(request, before.moved(self.ladder, length, request.num_prompt_tokens))
        forget(self.connector, request, keys=True)
        self._moved_up.add(request.request_id)

    def _place(self, request: Request, placement: Placement) -> None:
        """Place a request anew; if that changes its salt, it must hold no keys, and its blocks are rehashed."""
        self.placements[request.request_id] = placement
        placement.attach(request)
        if request.cache_salt != placement.salt:
            request.cache_salt = placement.salt
            request.block_hashes.clear()
            request.update_block_hashes()

    def _report_switch(self, request: Request, scheduled: int) -> None:
        """Have a switched request's next output report its recomputed tokens; ``scheduled`` ones count as computed."""
        if request.request_id not in self._moved_up:
            return
        self._moved_up.remove(request.request_id)
        # All but the last sampled token, whose keys would be computed anyway.
        before = request.num_tokens - 1
        cached = min(request.num_computed_tokens - scheduled, before)
        request.prefill_stats = PrefillStats()
        request.prefill_stats.set(before, cached, 0)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # By priority, upstream may preempt what this step has scheduled, with blocks cached whose keys nobody will compute.
        groups = self.kv_cache_manager.get_block_ids(request.request_id)
        for kind, blocks in zip(self.kv_cache_manager.coordinator.single_type_managers, groups, strict=True):
            self.kv_cache_manager.evict_blocks(set(blocks[request.num_computed_tokens // kind.block_size :]))
        super()._preempt_request(request, *args, **kwargs)
        forget(self.connector, request, keys=False)
        self._move_up(request)
        if request.num_in_flight_tokens:
            self._draining.add(request)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        if self.gives_up_blocks(request):
            return False
        return super()._handle_blocked_waiting_request(request)

    def gives_up_blocks(self, request: Request) -> bool:
        """Return whether a connector learns only from this step's output that the request's blocks are gone.

        Upstream's connectors finish their stores then, and would mistake loads in the same step for stores.
        """
        return self.connector is not None and request.request_id in self.reset_preempted_req_ids

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._moved_up.discard(request.request_id)
        self.placements.pop(request.request_id, None)
        self._draining.discard(request)
        return super()._free_request(request, *args, **kwargs)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        # Slots are already allocated for these drafts; unused ones serve the next step.
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

    def _update_request_as_session(self, session: Request, update: StreamingUpdate) -> None:
        # vLLM 0.32.0 counts drafts that were accepted past the end of an answer.
        session.num_computed_tokens = min(session.num_computed_tokens, session.num_tokens - 1)
        super()._update_request_as_session(session, update)
        # Upstream has replaced the parameters by the chunk's, which was placed by its own length.
        before, chunk = self.placements[session.request_id], placement_of(session)
        # Upstream computes no token past the longest sequence, and ends the session there.
        length = min(session.num_tokens, self.ladder.sets.max_length)
        placement = chunk.moved(self.ladder, length, session.num_prompt_tokens)
        if chunk.policy == RESERVE and placement.index < before.index:
            # The chunk may reserve less than the last; moving down would recompute the session.
            placement = replace(placement, index=before.index, name=before.name, salt=before.salt)
        if moves := placement.salt != before.salt:
            self._free_request_blocks(session)
            # Connectors may still be reading the blocks, as with a preempted request.
            self.reset_preempted_req_ids.add(session.request_id)
            session.num_computed_tokens = 0
        self._place(session, placement)
        forget(self.connector, session, keys=moves)


class LadderAsyncScheduler(LadderScheduler, AsyncScheduler):
    """The asynchronous scheduler, which plans a step while the last one runs.

    Each ``super()`` in :class:`LadderScheduler` reaches ``AsyncScheduler`` first.
    """
