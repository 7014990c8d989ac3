"""The planner's view of the engine: reads the state of vLLM's scheduler; no other module of the planner touches it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter

import numpy as np
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.step_cost import STEP, Load
from ropeswitch.model_patches.switch.engine.scheduler import LadderScheduler
from ropeswitch.model_patches.switch.placement import Placement

# Minimum tokens of a chunk, however deep in its prompt.
LEAST_CHUNK = 16

_PREFILLS = attrgetter("is_prefill_chunk")
_COMPUTED = attrgetter("num_computed_tokens")
_PLACEHOLDERS = attrgetter("num_output_placeholders")
# Reads the list itself: ``num_tokens`` is a property, which takes twice as long for a thousand requests.
_TOKENS = attrgetter("_all_token_ids")
_DRAFTS = attrgetter("spec_token_ids")


@dataclass(frozen=True, slots=True)
class Limits:
    """An engine's limits, which do not change while it runs."""

    tokens: int  # Maximum per step.
    chunk: int  # Maximum tokens of one prefill per step.
    least_chunk: int  # Minimum tokens of a chunk; below it the engine schedules none.
    chunked: bool  # Whether a prompt may be computed in several steps.
    drafts: int  # Draft tokens per request and step.
    block: int  # Tokens per KV cache block.
    blocks: int  # KV cache blocks of the engine.
    max_loras: int | None  # Maximum LoRA adapters per step, or None without LoRA.
    # Whether an image or other item of a prompt must be computed in one step (`--disable-chunked-mm-input`, which vLLM
    # sets on GPUs for models whose images attend to all of themselves).
    whole_items: bool


@dataclass(frozen=True, slots=True)
class StepView:
    """The engine's state before a step."""

    now: float  # Seconds on the scheduler's clock.
    step: int  # Number of the last step.
    unpaused: bool  # Whether waiting requests may start.
    running: Sequence[Request]  # Including the background request.
    prefills: Sequence[Request]  # Running requests with prompt tokens to compute, excluding the background request.
    holding: Sequence[Request]  # Waiting requests that hold KV cache blocks.
    inflight_prefills: Sequence[Request]  # Every request that upstream counts as a prefill in flight.
    in_order: bool  # Whether the running requests are known to be sorted by computed tokens, largest first.
    decodes: Load  # Of one step of the decoding requests alone.
    slots: int  # Number of requests that may start.
    free_blocks: int  # Free KV cache blocks beyond the watermark.
    reserved_blocks: int  # Blocks that the prefills in flight still need.


class SchedulerEngine:
    """Builds :class:`StepView` and :class:`Limits` from a scheduler, and answers queries about single requests."""

    def __init__(self, scheduler: LadderScheduler) -> None:
        self._scheduler = scheduler
        # Without drafts or recovered KV transfers, a decoding request has one token to compute; under synchronous
        # scheduling, none while its last one is in flight.
        self._single = not scheduler.num_spec_tokens and scheduler.connector is None
        self._single = self._single and scheduler.num_sampled_tokens_per_step == 1
        self._asynchronous = scheduler.scheduler_config.async_scheduling

    def limits(self) -> Limits:
        """Return the engine's limits, which do not change while it runs."""
        scheduler = self._scheduler
        least = max(LEAST_CHUNK, 1 + scheduler.num_spec_tokens)
        if scheduler.need_mamba_block_aligned_split:
            least = max(least, scheduler.cache_config.block_size)
        return Limits(
            tokens=scheduler.max_num_scheduled_tokens,
            chunk=scheduler.scheduler_config.long_prefill_token_threshold or scheduler.max_num_scheduled_tokens,
            least_chunk=least,
            chunked=scheduler.scheduler_config.enable_chunked_prefill,
            drafts=scheduler.num_spec_tokens,
            block=scheduler.block_size,
            blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            max_loras=scheduler.lora_config.max_loras if scheduler.lora_config else None,
            whole_items=scheduler.scheduler_config.disable_chunked_mm_input,
        )

    def placement(self, request: Request) -> Placement:
        """Return where a request is on the ladder."""
        return self._scheduler.placements[request.request_id]

    def view(self, now: float, background: Request | None, idle: bool) -> StepView:
        """Return the state before a step; ``background`` is neither prefill nor decode, ``idle`` that none runs."""
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        inflight, running = scheduler._inflight_prefills, scheduler.running
        plain = self._single and not inflight and background is None
        prefills, decodes = ([], running) if plain else split(running, background)
        computed = list(map(_COMPUTED, decodes))
        single = self._single and (self._asynchronous or idle)
        free: int = manager.block_pool.get_num_free_blocks()
        return StepView(
            now=now,
            step=scheduler.current_step,
            unpaused=scheduler.pause_state == PauseState.UNPAUSED,
            running=running,
            prefills=prefills,
            holding=list(scheduler.kv_holding_waiting),
            inflight_prefills=list(inflight),
            in_order=decodes is running and computed == sorted(computed, reverse=True),
            decodes=single_load(computed) if single else decode_load(decodes, computed),
            slots=scheduler.max_num_active_reqs - scheduler.num_waiting_for_streaming_input - len(running),
            free_blocks=free - manager.watermark_blocks if running else free,
            reserved_blocks=scheduler._inflight_prefill_reserved_blocks() if inflight else 0,
        )

    def blocked(self, request: Request) -> bool:
        """Return whether a waiting request waits for something other than space."""
        blocked: bool = self._scheduler._is_blocked_waiting_status(request.status)
        return blocked

    def ready(self, request: Request) -> bool:
        """Return whether a waiting request needs only space to start; this call may make a blocked one ready."""
        scheduler = self._scheduler
        # The second call promotes the request once its grammar, KV transfer or data has arrived.
        if self.blocked(request) and not scheduler._handle_blocked_waiting_request(request):
            return False
        if scheduler.gives_up_blocks(request):
            return False
        return not request.num_stale_output_tokens or request.drop_stale_output

    def blocks(self, request: Request, shares: bool) -> int:
        """Return the free blocks that a waiting request needs; with ``shares``, without those that running requests hold."""
        prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)
        blocks = self._blocks(request.request_id, request.num_tokens, prefill_end)
        if shares:
            hit = self._scheduler.kv_cache_manager.get_computed_blocks(request)[0]
            blocks -= sum(not block.is_null and block.ref_cnt > 0 for block in hit.blocks[0])
        return blocks

    def most_blocks(self, request: Request) -> int:
        """Return the blocks of a request's prompt and longest answer, in all groups of the KV cache."""
        # No request has this ID, so blocks that the request already holds count too.
        return self._blocks("", request.num_prompt_tokens + request.max_tokens, request.num_prompt_tokens)

    def _blocks(self, request_id: str, tokens: int, prefill_end: int) -> int:
        manager, tokens = self._scheduler.kv_cache_manager, min(tokens, self._scheduler.max_model_len)
        # Same as upstream's own check of a whole sequence, `allocate_slots(full_sequence_must_fit=True)`.
        blocks: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request_id,
            num_tokens=tokens,
            new_computed_blocks=manager.empty_kv_cache_blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=0,
            num_local_computed_tokens=0,
            num_tokens_main_model=tokens,
            apply_admission_cap=True,
            prefill_end=prefill_end,
        )
        return blocks

    def cache_hit(self, request: Request) -> int:
        """Return the number of prefix-cached tokens of a request that holds no blocks."""
        manager = self._scheduler.kv_cache_manager
        if request.num_computed_tokens or not manager.prefix_cache_lookup_enabled(request):
            return 0
        hit: int = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]
        return hit


def split(running: Sequence[Request], background: Request | None) -> tuple[list[Request], Sequence[Request]]:
    """Split running requests into those with prompt tokens to compute and those decoding, both without ``background``."""
    prefills = list(compress(running, map(_PREFILLS, running)))
    if not prefills and background is None:
        return prefills, running
    decodes = [each for each in running if not each.is_prefill_chunk and each is not background]
    return [each for each in prefills if each is not background], decodes


def single_load(computed: Sequence[int]) -> Load:
    """Return the load of a step that computes one token of each decoding request, given their computed tokens."""
    count, total = len(computed), sum(computed)
    return Load(1.0, count, count, total + count / 2, total + count)


def decode_load(decodes: Sequence[Request], computed: Sequence[int]) -> Load:
    """Return the load of a step of decoding requests with any number of tokens to compute; those with none do not count."""
    before = np.array(computed, dtype=np.int64)
    known = lengths(decodes)
    for each in (map(len, map(_DRAFTS, decodes)), map(_PLACEHOLDERS, decodes)):
        known += np.fromiter(each, np.int64, len(decodes))
    return STEP + chunks(known - before, before)


def chunks(tokens: np.ndarray, before: np.ndarray) -> Load:
    """Return the load of computing ``tokens[i]`` tokens after ``before[i]`` others, for every i with ``tokens[i] > 0``."""
    some = tokens > 0
    tokens, before = tokens[some], before[some]
    products = float((tokens * (before + tokens / 2)).sum())
    return Load(0.0, len(tokens), int(tokens.sum()), products, int((before + tokens).sum()))


def lengths(requests: Sequence[Request]) -> np.ndarray:
    """Return the number of known tokens of each request, (requests,)."""
    return np.fromiter(map(len, map(_TOKENS, requests)), np.int64, len(requests))
