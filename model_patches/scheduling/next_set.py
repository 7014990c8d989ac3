"""Prefills the next factor set's keys of a stream that nears its set's end, so that its switch computes only a few tokens.

The stream's tokens become the prompt of an internal request in the next set. It is given what a step has left over when no
prefill is in it, never samples, and leaves its full blocks in the prefix cache, where the switched stream finds them.
What the stream has said meanwhile becomes the prompt of another one, and so on, each with less to do than the last.
"""

from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.scheduling.step_cost import StepCost
from ropeswitch.model_patches.switch.request_set import assigned_set, forced_set
from ropeswitch.model_patches.switch.settings import FORCED_SET

# The work lengthens a step of the streams by so many times its own length: the least that is done in time.
PACES = (0.5, 1.0, 1.5, 2.0)
# An internal request's prompt is so much longer than the last one's at most, so that no step waits for its hashing.
PIECE = 16384
# Into so many parts a prompt is divided to predict how many steps it takes, as chunks cost more the deeper they are.
PARTS = 4
# It may hold this part of all blocks.
MOST_BLOCKS = 0.5
# Streams that near their end are looked for in one of so many steps.
LOOK_EVERY = 8
# The worst of upstream's priorities, which makes the internal request the first to be preempted.
LAST_PRIORITY = 2**31 - 1


class NextSetPrefill:
    """Works for one stream at a time, through one internal request at a time.

    Args:
        scheduler: Our subclass of ``vllm.v1.core.sched.scheduler.Scheduler``, with a :class:`WaitingQueue`.
        ladder: The factor sets.
        cost: The predicted time of steps.

    Attributes:
        request: The internal request, if there is one.
        tokens: Tokens computed for next sets since the start.
    """

    def __init__(self, scheduler: Any, ladder: FactorLadder, cost: StepCost) -> None:
        self._scheduler = scheduler
        self._ladder = ladder
        self._cost = cost
        self._block: int = scheduler.block_size
        self._blocks: int = scheduler.kv_cache_manager.block_pool.num_gpu_blocks
        self._most_tokens: int = scheduler.max_num_scheduled_tokens
        self._most_chunk: int = scheduler.scheduler_config.long_prefill_token_threshold or self._most_tokens
        self._made = 0
        self._stream: Request | None = None
        # Tokens of the stream whose next keys were computed before the present internal request.
        self._done = 0
        # What was known of the stream when the present pass over it began, which is to be done when so many steps are left.
        self._pass_end = 0
        self._finish_at = 0
        # Of the pieces so far, so that each hashes its own blocks alone.
        self._hashes: list[Any] = []
        self.request: Request | None = None
        self.tokens = 0

    def prepare(self, busy: float, spare: float) -> None:
        """Give the internal request tokens of a step that is otherwise planned, or hold it.

        Args:
            busy: Seconds that the step takes without it.
            spare: Seconds that it may take more; 0 where there are prefills in the step.
        """
        if self._stream is not None and not self._worth(self._stream):
            self.cancel()
        if self._stream is None and spare > 0 and self._scheduler.current_step % LOOK_EVERY == 0:
            self._stream = next(
                (each for each in self._scheduler.running if self._worth(each) and self._due(each, busy)), None
            )
        if self._stream is None:
            return
        self._close()
        if self.request is None and spare > 0 and self._due(self._stream, busy):
            self._open(self._stream)
        if self.request is not None:
            self._give(self.request, self._stream, busy, spare)

    def cancel(self) -> None:
        """Forget the stream, and free what the internal request holds."""
        if self.request is not None:
            self._scheduler.finish_requests(self.request.request_id, RequestStatus.FINISHED_ABORTED)
        self._stream, self.request, self._done, self._pass_end, self._hashes = None, None, 0, 0, []

    def _worth(self, stream: Request) -> bool:
        """Whether a request is a stream that may outgrow its set, and nothing else needs the room."""
        scheduler, index = self._scheduler, assigned_set(stream)
        if stream.status != RequestStatus.RUNNING or stream.is_prefill_chunk or stream is self.request:
            return False
        if index + 1 == len(self._ladder.sets) or forced_set(stream.sampling_params) is not None:
            return False
        end = self._ladder.sets[index].max_length
        if stream.sampling_params is None or stream.prompt_embeds is not None or stream.skip_reading_prefix_cache:
            return False
        if not stream.num_tokens <= end < stream.num_prompt_tokens + stream.max_tokens:
            return False
        if self.request is not None and self.request.status == RequestStatus.PREEMPTED:
            return False
        blocked = scheduler._is_blocked_waiting_status
        return scheduler.waiting.all_offered and all(blocked(each.status) for each in scheduler.kv_holding_waiting)

    def _full(self, stream: Request) -> int:
        """Tokens of the stream in full blocks, with at least one more known."""
        return (stream.num_tokens - 1) // self._block * self._block

    def _progress(self) -> int:
        return self._done if self.request is None else max(self._done, self.request.num_computed_tokens)

    def _steps(self, stream: Request) -> int:
        end = self._ladder.sets[assigned_set(stream)].max_length
        return max(int(end) - stream.num_tokens, 1)

    def _needed(self, before: int, tokens: int, pace: float) -> float:
        """Steps that so many tokens after ``before`` others take, at ``pace`` seconds a step."""
        part = tokens / PARTS
        middles = (int(before + part * (i + 0.5)) for i in range(PARTS))
        return sum(part / max(self._cost.tokens_within(pace, middle), 0.5) for middle in middles)

    def _due(self, stream: Request, busy: float) -> bool:
        """Whether the next set's keys of what is known take half of the steps until the switch, or are begun."""
        done, full = self._progress(), self._full(stream)
        if done < self._pass_end:
            return True
        return full > done and 2 * self._needed(done, full - done, PACES[1] * busy) >= self._steps(stream)

    def _close(self) -> None:
        """End an internal request that has computed all its full blocks; they stay in the prefix cache."""
        if self.request is not None and self.request.num_computed_tokens >= self.request.num_tokens - 1:
            self._done = self.request.num_tokens - 1
            self._scheduler.finish_requests(self.request.request_id, RequestStatus.FINISHED_ABORTED)
            self.request = None

    def _open(self, stream: Request) -> None:
        scheduler = self._scheduler
        if self._done >= self._pass_end:
            self._pass_end = self._full(stream)
            # Done when a quarter of the steps is left for what the stream says meanwhile, as slowly as that allows.
            self._finish_at = self._steps(stream) // 4
        full = min(self._pass_end, self._done + PIECE // self._block * self._block)
        needed = -(-full // self._block)
        admission = scheduler.length_aware.admission
        if admission.slots < 2 or needed > min(admission.blocks, MOST_BLOCKS * self._blocks):
            return
        self._made += 1
        index = assigned_set(stream) + 1
        request = Request(
            f"{stream.request_id}-next-set-{self._made}",
            list(stream.all_token_ids[: full + 1]),
            SamplingParams(max_tokens=1, temperature=0.0, extra_args={FORCED_SET: self._ladder.names[index]}),
            None,
            client_index=stream.client_index,
            lora_request=stream.lora_request,
            cache_salt=stream.cache_salt,
            priority=LAST_PRIORITY,
        )
        request.rope_set = index
        request._block_hasher = stream._block_hasher
        request.block_hashes = list(self._hashes)
        request.update_block_hashes()
        self._hashes = list(request.block_hashes)
        # Its hits are no one's, as those of a request that was preempted are not counted.
        request.num_preemptions = 1
        request.works_apart = True
        scheduler.add_request(request)
        self.request = request
        # What was computed may be gone.
        self._done = scheduler.length_aware.expected_hit(request)

    def _give(self, request: Request, stream: Request, busy: float, spare: float) -> None:
        scheduler = self._scheduler
        waits = request.status == RequestStatus.WAITING
        before = scheduler.length_aware.expected_hit(request) if waits else request.num_computed_tokens
        goal = request.num_tokens - 1
        tokens = 0
        if spare > 0 and before < goal:
            steps = max(self._steps(stream) - self._finish_at, 1)
            enough = (pace for pace in PACES if self._needed(before, self._pass_end - before, pace * busy) <= steps)
            seconds = min(next(enough, PACES[-1]) * busy, spare)
            left = self._most_tokens - scheduler.max_num_scheduled_tokens
            tokens = min(self._cost.tokens_within(seconds, before), goal - before, left, self._most_chunk)
        if waits and before >= goal:
            self._done = goal
            scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
            self.request = None
        elif tokens > scheduler.num_spec_tokens:
            self.tokens += tokens
            scheduler.scheduler_config.long_prefill_token_threshold = tokens
            scheduler.max_num_scheduled_tokens += tokens
            if waits:
                scheduler.waiting.offer_apart(request)
        elif not waits:
            request.next_decode_eligible_step = max(request.next_decode_eligible_step, scheduler.current_step + 2)
