"""Which waiting requests may start now, so that a long one neither blocks those behind it nor starves.

A request starts when a slot and blocks for all of its tokens are free, beyond those that running prefills still need. While
the oldest that waits does not fit, younger ones may pass it, but blocks and at last a slot are kept for it as it ages: as
much of its need as it has waited of the time that its own prefill takes. After that time no one passes any more.
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

    def start(self, now: float, target: float) -> None:
        """Count what is free before a step, and what is kept for the oldest that does not fit.

        Args:
            now: The scheduler's clock.
            target: The least time that a request is passed over before anything is kept for it.
        """
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        self.slots: int = scheduler.max_num_active_reqs - scheduler.num_waiting_for_streaming_input
        self.slots -= len(scheduler.running)
        self.blocks: int = manager.block_pool.get_num_free_blocks() - scheduler._inflight_prefill_reserved_blocks()
        if scheduler.running:
            self.blocks -= manager.watermark_blocks
        self._loras = {each.lora_request.lora_int_id for each in scheduler.running if each.lora_request}
        self.oldest = self._oldest_ready()
        self._kept_slots, self._kept_blocks = 0, 0
        if self.oldest is not None and not self.fits(self.oldest):
            tokens = self.oldest.num_tokens
            waited = (now - self.oldest.queued_at) / max(self._cost.seconds(chunk(tokens, 0)), target)
            self._kept_blocks = int(self.needs(self.oldest) * min(waited, 1.0))
            self._kept_slots = int(waited >= 1.0)

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
            full = len(self._loras) == scheduler.lora_config.max_loras
            return not full or request.lora_request.lora_int_id in self._loras
        return True

    def needs(self, request: Request) -> int:
        """The free blocks that a waiting request takes, those it shares with running ones not counted."""
        scheduler = self._scheduler
        blocks: int = scheduler._request_remaining_blocks(request)
        if request.expected_hit:
            hit = scheduler.kv_cache_manager.get_computed_blocks(request)[0]
            blocks -= sum(not block.is_null and block.ref_cnt > 0 for block in hit.blocks[0])
        return blocks

    def fits(self, request: Request) -> bool:
        """Whether a ready request may start, without what is kept for an older one."""
        slots, blocks = self.slots, self.blocks
        if request is not self.oldest:
            slots, blocks = slots - self._kept_slots, blocks - self._kept_blocks
        return slots > 0 and self.needs(request) <= blocks

    def take(self, request: Request) -> None:
        """Count a request that this step starts."""
        self.slots -= 1
        self.blocks -= self.needs(request)
        if request.lora_request:
            self._loras.add(request.lora_request.lora_int_id)
