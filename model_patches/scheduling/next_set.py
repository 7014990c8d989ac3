"""Prefills a decoding request's keys in its next factor set before it switches, so that the switch recomputes little.

The request's tokens become the prompt of an internal request in the next set. The internal request uses the spare time of
steps without a prefill, never samples, and leaves its full blocks in the prefix cache, where the decoding request finds
them after the switch. Further internal requests prefill the tokens generated in the meantime, fewer each time.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request, RequestStatus

from ropeswitch.model_patches.scheduling.admission import Admission
from ropeswitch.model_patches.scheduling.decision import IDLE, BackgroundDecision, StepDecision
from ropeswitch.model_patches.scheduling.engine import Limits, SchedulerEngine, StepView, lengths
from ropeswitch.model_patches.scheduling.step_cost import StepCost
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue
from ropeswitch.model_patches.switch.placement import EngineLadder, client_part, place

# The internal request's time in a step, as a multiple of the decoding requests'; the smallest that is fast enough is used.
PACES = (0.5, 1.0, 1.5, 2.0)
# Maximum tokens by which an internal request's prompt exceeds the last one's, so that hashing it delays no step.
PIECE = 16384
# Parts into which a prompt is split to predict its number of steps: a chunk costs more the deeper it is in its prompt.
PARTS = 4
# Maximum share of all blocks that the internal request may hold.
MOST_BLOCKS = 0.5
# Steps between searches for decoding requests that approach the end of their set.
LOOK_EVERY = 8
# Upstream's lowest priority, so that the internal request is preempted first.
LAST_PRIORITY = 2**31 - 1


class NextSetPrefill:
    """Prefills for one decoding request at a time, through one internal request at a time."""

    def __init__(
        self, limits: Limits, engine: SchedulerEngine, queue: WaitingQueue, ladder: EngineLadder, cost: StepCost
    ) -> None:
        self._limits, self._engine, self._queue = limits, engine, queue
        self._ladder, self._cost, self._block = ladder, cost, limits.block
        self._made = 0
        self._decode: Request | None = None
        # Tokens of the decoding request that earlier internal requests have computed in the next set.
        self._done = 0
        # Tokens in full blocks when the current pass began, and how many steps before the switch it should finish.
        self._pass_end = 0
        self._finish_at = 0
        # Block hashes of earlier internal requests, so that each hashes only its own new blocks.
        self._hashes: list[BlockHash] = []
        # The internal request.
        self.request: Request | None = None
        # Tokens prefilled for next sets since startup.
        self.tokens = 0

    def decide(self, view: StepView, step: StepDecision, admission: Admission) -> BackgroundDecision:
        """Decide what a step does with the internal request; ``step`` and ``admission`` are the plan without it."""
        before, busy, spare = self.request, step.busy, step.spare
        looks = spare > 0 and view.step % LOOK_EVERY == 0
        if self._decode is None and not looks:
            return IDLE
        # Every other waiting request comes first.
        quiet = len(step.offered) == self._queue.num_offerable and all(map(self._engine.blocked, view.holding))
        if self._decode is not None and not (quiet and self._worth(self._decode)):
            self._decode, self.request, self._done, self._pass_end, self._hashes = None, None, 0, 0, []
        if self._decode is None and looks and quiet:
            near = self._near(view.running, busy)
            self._decode = next((each for each in near if self._worth(each) and self._due(each, busy)), None)
        if self._decode is None:
            return BackgroundDecision(finish=before)
        self._close()
        if self.request is None and spare > 0 and self._due(self._decode, busy):
            self._open(self._decode, admission)
        tokens = 0 if self.request is None else self._give(self.request, self._decode, step)
        if self.request is before:
            return BackgroundDecision(request=before, tokens=tokens)
        return BackgroundDecision(finish=before, start=self.request, request=self.request, tokens=tokens)

    def _near(self, running: Sequence[Request], busy: float) -> Iterator[Request]:
        """Find running requests that may be due, with a cheap test: most are far from the end of their set."""
        known = lengths(running)
        if not len(known):
            return iter(())
        # No step computes fewer tokens than at the greatest depth, so a request of n tokens needs at most n / slowest steps.
        slowest = max(self._cost.tokens_within(PACES[1] * busy, int(known.max())), 0.5)
        near = np.zeros(len(known), dtype=bool)
        for end in (each.max_length for each in self._ladder.sets.sets[:-1]):
            near |= (known <= end) & (2 * known / slowest >= end - known)
        return (running[i] for i in np.flatnonzero(near))

    def _worth(self, decode: Request) -> bool:
        """Whether a request is decoding and may outgrow its set."""
        if decode.status != RequestStatus.RUNNING or decode.is_prefill_chunk or decode is self.request:
            return False
        placement = self._engine.placement(decode)
        if placement.forced or placement.index + 1 == len(self._ladder.sets.sets):
            return False
        if decode.sampling_params is None or decode.skip_reading_prefix_cache:
            return False
        # The internal request has only token IDs, and those of an image or of embeddings are placeholders.
        if decode.mm_features or decode.prompt_embeds is not None:
            return False
        if not decode.num_tokens <= self._ladder.end(placement.index) < decode.num_prompt_tokens + decode.max_tokens:
            return False
        return self.request is None or self.request.status != RequestStatus.PREEMPTED

    def _full(self, decode: Request) -> int:
        """Return the number of tokens in full blocks, leaving at least one token after them."""
        return (decode.num_tokens - 1) // self._block * self._block

    def _progress(self) -> int:
        return self._done if self.request is None else max(self._done, self.request.num_computed_tokens)

    def _steps(self, decode: Request) -> int:
        return max(self._ladder.end(self._engine.placement(decode).index) - decode.num_tokens, 1)

    def _needed(self, before: int, tokens: int, pace: float) -> float:
        """Predict how many steps ``tokens`` tokens after ``before`` others take, at ``pace`` seconds per step."""
        part = tokens / PARTS
        middles = (int(before + part * (i + 0.5)) for i in range(PARTS))
        return sum(part / max(self._cost.tokens_within(pace, middle), 0.5) for middle in middles)

    def _due(self, decode: Request, busy: float) -> bool:
        """Whether prefilling the next set would take at least half of the steps until the switch, or has begun."""
        done, full = self._progress(), self._full(decode)
        if done < self._pass_end:
            return True
        return full > done and 2 * self._needed(done, full - done, PACES[1] * busy) >= self._steps(decode)

    def _close(self) -> None:
        """Finish an internal request that needs no further chunk; its full blocks stay in the prefix cache."""
        if self.request is not None and self._complete(self.request, self.request.num_computed_tokens):
            self._done = self.request.num_tokens - 1
            self.request = None

    def _complete(self, request: Request, computed: int) -> bool:
        """Whether all full blocks are computed, or too few tokens are left for a chunk; the switch computes those."""
        return request.num_tokens - 1 - computed <= self._limits.drafts

    def _open(self, decode: Request, admission: Admission) -> None:
        if self._done >= self._pass_end:
            self._pass_end = self._full(decode)
            # Leave a quarter of the steps for tokens generated in the meantime.
            self._finish_at = self._steps(decode) // 4
        full = min(self._pass_end, self._done + PIECE // self._block * self._block)
        needed = -(-full // self._block)
        if admission.slots < 2 or needed > min(admission.blocks, MOST_BLOCKS * self._limits.blocks):
            return
        self._made += 1
        before = self._engine.placement(decode)
        name, salt = self._ladder.sets.names[before.index + 1], client_part(before.salt)
        placement = place(self._ladder, full + 1, forced=name, client_salt=salt)
        request = Request(
            f"{decode.request_id}-next-set-{self._made}",
            list(decode.all_token_ids[: full + 1]),
            placement.carried_by(SamplingParams(max_tokens=1, temperature=0.0)),
            None,
            client_index=decode.client_index,
            lora_request=decode.lora_request,
            cache_salt=placement.salt,
            priority=LAST_PRIORITY,
        )
        request._block_hasher = decode._block_hasher
        request.block_hashes = list(self._hashes)
        request.update_block_hashes()
        self._hashes = list(request.block_hashes)
        # Upstream excludes a preempted request's prefix cache hits from its statistics; these must not count either.
        request.num_preemptions = 1
        self.request = request
        # Computed blocks may have been evicted.
        self._done = self._engine.cache_hit(request)

    def _give(self, request: Request, decode: Request, step: StepDecision) -> int:
        """Return the internal request's tokens in this step (0 holds it); end it if the cache already has its keys."""
        waits = request.status == RequestStatus.WAITING
        before = self._engine.cache_hit(request) if waits else request.num_computed_tokens
        goal = request.num_tokens - 1
        tokens = 0
        if step.spare > 0 and before < goal:
            steps, missing = max(self._steps(decode) - self._finish_at, 1), self._pass_end - before
            enough = (pace for pace in PACES if self._needed(before, missing, pace * step.busy) <= steps)
            seconds = min(next(enough, PACES[-1]) * step.busy, step.spare)
            left = self._limits.tokens - step.budget
            tokens = min(self._cost.tokens_within(seconds, before), goal - before, left, self._limits.chunk)
        if waits and self._complete(request, before):
            self._done = goal
            self.request = None
        if tokens <= self._limits.drafts:
            return 0
        self.tokens += tokens
        return tokens
