"""Reads the state of vLLM's scheduler for the planner; no other module of the planner touches it."""

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.view import Limits, StepView, computed_tokens, decode_load, single_load, split
from ropeswitch.model_patches.switch.engine.scheduler import LadderScheduler
from ropeswitch.model_patches.switch.placement import Placement

# Minimum tokens of a chunk, however deep in its prompt.
LEAST_CHUNK = 16


class SchedulerEngine:
    """Builds :class:`StepView` and :class:`Limits` from a scheduler, and answers the planner's queries about one request.

    Args:
        scheduler: A constructed scheduler, before its first step.
    """

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

    def view(self, now: float, background: Request | None, settled: bool) -> StepView:
        """Take a snapshot of the scheduler's state.

        Args:
            now: Seconds on the scheduler's clock.
            background: The internal request, which is neither a prefill nor a decoding request.
            settled: Whether the results of all planned steps have arrived.
        """
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        inflight, running = scheduler._inflight_prefills, scheduler.running
        plain = self._single and not inflight and background is None
        prefills, decodes = ([], running) if plain else split(running, background)
        computed = computed_tokens(decodes)
        single = self._single and (self._asynchronous or settled)
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
