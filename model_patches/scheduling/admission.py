"""Which waiting requests may start now, so that a long one neither blocks those behind it nor starves.

A request starts when a slot and blocks for all of its tokens are free, beyond those that running prefills still need in the
time that it may take. While the oldest that waits does not fit, younger ones may pass it, but blocks and at last a slot are
kept for it as it ages: as much of its need as it has waited of the time that its own prefill takes. After that time only
those pass that fit beside it, and so do not delay it (as backfilling does in batch systems: Lifka, The ANL/IBM SP scheduling
system, 1995).
"""

from typing import Any

from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.step_cost import StepCost, chunk
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue


class Admission:
    """Counts the slots and blocks that a step's plan may give away.

    Args:
        scheduler: ``vllm.v1.core.sched.scheduler.Scheduler``.
        queue: Its waiting queue.
        cost: The predicted time of steps.
    """

    def __init__(self, scheduler: Any, queue: WaitingQueue, cost: StepCost) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._cost = cost
        self._block: int = scheduler.block_size
        self._total: int = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def start(self, now: float, target: float) -> None:
        """Count what is free before a step, and what is kept for the oldest that does not fit.

        Args:
            now: The scheduler's clock.
            target: The least time that a request is passed over before anything is kept for it.
        """
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        self.slots: int = scheduler.max_num_active_reqs - scheduler.num_waiting_for_streaming_input
        self.slots -= len(scheduler.running)
        self.blocks: int = manager.block_pool.get_num_free_blocks()
        if scheduler.running:
            self.blocks -= manager.watermark_blocks
        prefills = scheduler._inflight_prefills
        self._coming_blocks: int = scheduler._inflight_prefill_reserved_blocks() if prefills else 0
        loads = (chunk(each.num_tokens - each.num_computed_tokens, each.num_computed_tokens) for each in prefills)
        self._coming_seconds = sum(self._cost.seconds(load) for load in loads)
        self._target = target
        self._needed: dict[Request, int] = {}
        self._loras = {each.lora_request.lora_int_id for each in scheduler.running if each.lora_request}
        self._kept_slots, self._kept_blocks, self._beside = 0, 0, 0
        self.oldest = self._oldest_ready() if self.slots > 0 else None
        if self.oldest is not None and not self.fits(self.oldest):
            tokens = self.oldest.num_tokens
            waited = (now - self.oldest.queued_at) / max(self._cost.seconds(chunk(tokens, 0)), target)
            self._kept_blocks = int(self.needs(self.oldest) * min(waited, 1.0))
            self._kept_slots = int(waited >= 1.0)
            self._beside = self._total - self.needs(self.oldest) - self._passed(self.oldest)

    def _passed(self, oldest: Request) -> int:
        """The most blocks that running requests which came after the oldest may come to hold."""
        order = self._queue.key(oldest)
        return sum(self._most(each) for each in self._scheduler.running if self._queue.key(each) > order)

    def _most(self, request: Request) -> int:
        return -(-(request.num_prompt_tokens + request.max_tokens) // self._block)

    def _oldest_ready(self) -> Request | None:
        return next((entry[3] for entry in self._queue.by_age if self.ready(entry[3])), None)

    def ready(self, request: Request) -> bool:
        """Whether nothing but space may keep a waiting request from starting, by upstream's own rules."""
        scheduler = self._scheduler
        # The second call promotes it once what it waits for is there.
        blocked = scheduler._is_blocked_waiting_status(request.status)
        if blocked and not scheduler._handle_blocked_waiting_request(request):
            return False
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        if scheduler.lora_config and request.lora_request:
            full = len(self._loras) >= scheduler.lora_config.max_loras
            return not full or request.lora_request.lora_int_id in self._loras
        return True

    def needs(self, request: Request) -> int:
        """The free blocks that a waiting request takes, those it shares with running ones not counted."""
        if request not in self._needed:
            self._needed[request] = self._blocks_of(request)
        return self._needed[request]

    def _blocks_of(self, request: Request) -> int:
        scheduler, tokens = self._scheduler, min(request.num_tokens, self._scheduler.max_model_len)
        manager = scheduler.kv_cache_manager
        # As upstream's own check of a whole sequence, `allocate_slots(full_sequence_must_fit=True)`.
        blocks: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=tokens,
            new_computed_blocks=manager.empty_kv_cache_blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=0,
            num_local_computed_tokens=0,
            num_tokens_main_model=tokens,
            apply_admission_cap=True,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        if request.expected_hit:
            hit = manager.get_computed_blocks(request)[0]
            blocks -= sum(not block.is_null and block.ref_cnt > 0 for block in hit.blocks[0])
        return blocks

    def fits(self, request: Request) -> bool:
        """Whether a ready request may start, without what is kept for an older one."""
        if self.slots <= 0:
            return False
        if not self._scheduler.running:
            # Nothing will ever free more.
            return request is self.oldest or self.needs(request) <= self.blocks - self._kept_blocks
        needs, free = self.needs(request), self.blocks
        if self._coming_blocks:
            # What running prefills take while this one is there; the rest is free again before they come to it.
            stay = self._cost.seconds(chunk(request.num_tokens, 0)) + request.max_tokens * self._target
            share = stay / self._coming_seconds if stay < self._coming_seconds else 1.0
            free -= int(self._coming_blocks * share)
        if needs > free:
            return False
        if request is self.oldest or not self._kept_blocks:
            return True
        beside = self._most(request) <= self._beside
        return self.slots > self._kept_slots and (beside or needs <= free - self._kept_blocks)

    def take(self, request: Request) -> None:
        """Count a request that this step starts."""
        self.slots -= 1
        self.blocks -= self.needs(request)
        self._beside -= self._most(request)
        if request.lora_request:
            self._loras.add(request.lora_request.lora_int_id)
