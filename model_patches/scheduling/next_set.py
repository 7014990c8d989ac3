"""Prefills the next factor set's keys of a stream that nears its set's end, so that its switch computes only a few tokens.

The stream's tokens become the prompt of an internal request in the next set. It is given what a step has left over when no
prefill is in it, never samples, and leaves its full blocks in the prefix cache, where the switched stream finds them.
What the stream has said meanwhile becomes the prompt of another one, and so on, each with less to do than the last.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request, RequestStatus

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.scheduling.admission import Admission
from ropeswitch.model_patches.scheduling.decision import IDLE, BackgroundDecision, StepDecision
from ropeswitch.model_patches.scheduling.step_cost import StepCost
from ropeswitch.model_patches.scheduling.view import Engine, Limits, StepView, lengths
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue
from ropeswitch.model_patches.switch.request_set import assign, assigned_set, forced_set
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
        limits: The engine's.
        engine: Answers questions about single requests.
        queue: The waiting queue.
        ladder: The factor sets.
        cost: The predicted time of steps.

    Attributes:
        request: The internal request, if there is one.
        tokens: Tokens computed for next sets since the start.
    """

    def __init__(
        self, limits: Limits, engine: Engine, queue: WaitingQueue, ladder: FactorLadder, cost: StepCost
    ) -> None:
        self._limits, self._engine, self._queue = limits, engine, queue
        self._ladder = ladder
        self._cost = cost
        self._block = limits.block
        self._made = 0
        self._stream: Request | None = None
        # Tokens of the stream whose next keys were computed before the present internal request.
        self._done = 0
        # What was known of the stream when the present pass over it began, which is to be done when so many steps are left.
        self._pass_end = 0
        self._finish_at = 0
        # Of the pieces so far, so that each hashes its own blocks alone.
        self._hashes: list[BlockHash] = []
        self.request: Request | None = None
        self.tokens = 0

    def decide(self, view: StepView, step: StepDecision, admission: Admission) -> BackgroundDecision:
        """What happens to the internal request in a step that is otherwise planned.

        Args:
            view: The engine before the step.
            step: The step without it.
            admission: What the step's plan has left.
        """
        before, busy, spare = self.request, step.busy, step.spare
        looks = spare > 0 and view.step % LOOK_EVERY == 0
        if self._stream is None and not looks:
            return IDLE
        # Nothing else may need the room.
        quiet = len(step.offered) == self._queue.num_offerable and all(map(self._engine.blocked, view.holding))
        if self._stream is not None and not (quiet and self._worth(self._stream)):
            self._stream, self.request, self._done, self._pass_end, self._hashes = None, None, 0, 0, []
        if self._stream is None and looks and quiet:
            near = self._near(view.running, busy)
            self._stream = next((each for each in near if self._worth(each) and self._due(each, busy)), None)
        if self._stream is None:
            return BackgroundDecision(finish=before)
        self._close()
        if self.request is None and spare > 0 and self._due(self._stream, busy):
            self._open(self._stream, admission)
        tokens = 0 if self.request is None else self._give(self.request, self._stream, step)
        new = self.request is not before
        return BackgroundDecision(
            finish=before if new else None,
            start=self.request if new else None,
            request=self.request,
            tokens=tokens,
        )

    def _near(self, running: Sequence[Request], busy: float) -> Iterator[Request]:
        """The running requests that may be due: of a thousand all but few are too far from any set's end."""
        known = lengths(running)
        if not len(known):
            return iter(())
        # No step computes fewer tokens than at the greatest depth, so a request of n tokens needs at most n / slowest steps.
        slowest = max(self._cost.tokens_within(PACES[1] * busy, int(known.max())), 0.5)
        near = np.zeros(len(known), dtype=bool)
        for each in self._ladder.sets[:-1]:
            near |= (known <= each.max_length) & (2 * known / slowest >= each.max_length - known)
        return (running[i] for i in np.flatnonzero(near))

    def _worth(self, stream: Request) -> bool:
        """Whether a request is a stream that may outgrow its set."""
        index = assigned_set(stream)
        if stream.status != RequestStatus.RUNNING or stream.is_prefill_chunk or stream is self.request:
            return False
        if index + 1 == len(self._ladder.sets) or forced_set(stream.sampling_params) is not None:
            return False
        end = self._ladder.sets[index].max_length
        if stream.sampling_params is None or stream.prompt_embeds is not None or stream.skip_reading_prefix_cache:
            return False
        if not stream.num_tokens <= end < stream.num_prompt_tokens + stream.max_tokens:
            return False
        return self.request is None or self.request.status != RequestStatus.PREEMPTED

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
            self.request = None

    def _open(self, stream: Request, admission: Admission) -> None:
        if self._done >= self._pass_end:
            self._pass_end = self._full(stream)
            # Done when a quarter of the steps is left for what the stream says meanwhile, as slowly as that allows.
            self._finish_at = self._steps(stream) // 4
        full = min(self._pass_end, self._done + PIECE // self._block * self._block)
        needed = -(-full // self._block)
        if admission.slots < 2 or needed > min(admission.blocks, MOST_BLOCKS * self._limits.blocks):
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
        assign(request, index)
        request._block_hasher = stream._block_hasher
        request.block_hashes = list(self._hashes)
        request.update_block_hashes()
        self._hashes = list(request.block_hashes)
        # Its hits are no one's, as those of a request that was preempted are not counted.
        request.num_preemptions = 1
        self.request = request
        # What was computed may be gone.
        self._done = self._engine.cache_hit(request)

    def _give(self, request: Request, stream: Request, step: StepDecision) -> int:
        """The internal request's tokens in this step; 0 holds it. It is ended where the cache already has its keys."""
        waits = request.status == RequestStatus.WAITING
        before = self._engine.cache_hit(request) if waits else request.num_computed_tokens
        goal = request.num_tokens - 1
        tokens = 0
        if step.spare > 0 and before < goal:
            steps = max(self._steps(stream) - self._finish_at, 1)
            enough = (
                pace for pace in PACES if self._needed(before, self._pass_end - before, pace * step.busy) <= steps
            )
            seconds = min(next(enough, PACES[-1]) * step.busy, step.spare)
            left = self._limits.tokens - step.budget
            tokens = min(self._cost.tokens_within(seconds, before), goal - before, left, self._limits.chunk)
        if waits and before >= goal:
            self._done = goal
            self.request = None
        if tokens <= self._limits.drafts:
            return 0
        self.tokens += tokens
        return tokens
