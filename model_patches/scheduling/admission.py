"""Which waiting requests may start now, so that a long one neither blocks those behind it nor starves.

A request starts when a slot and blocks for all of its tokens are free, beyond those that running prefills still need in the
time that it may take. While the oldest that waits does not fit, younger ones may pass it, but blocks and at last a slot are
kept for it as it ages: as much of its need as it has waited of the time that its own prefill takes. After that time only
those pass that fit beside it, and so do not delay it (as backfilling does in batch systems: Lifka, The ANL/IBM SP scheduling
system, 1995).
"""

from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.step_cost import StepCost, chunk
from ropeswitch.model_patches.scheduling.view import Engine, Limits, StepView
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue


class Admission:
    """Counts the slots and blocks that one step may give away, and what is kept for the oldest that does not fit.

    Args:
        view: The engine before the step.
        limits: The engine's.
        engine: Answers questions about single requests.
        queue: The waiting queue.
        cost: The predicted time of steps.
        target: Minimum seconds that a request is passed over before anything is kept for it.
    """

    def __init__(
        self, view: StepView, limits: Limits, engine: Engine, queue: WaitingQueue, cost: StepCost, target: float
    ) -> None:
        self._view, self._limits, self._engine = view, limits, engine
        self._queue, self._cost, self._target = queue, cost, target
        self.slots, self.blocks = view.slots, view.free_blocks
        loads = (
            chunk(each.num_tokens - each.num_computed_tokens, each.num_computed_tokens)
            for each in view.inflight_prefills
        )
        self._coming_seconds = sum(self._cost.seconds(load) for load in loads)
        self._needed: dict[Request, int] = {}
        self._loras: set[int] = set()
        if limits.max_loras is not None:
            self._loras = {each.lora_request.lora_int_id for each in view.running if each.lora_request}
        self._kept_slots, self._kept_blocks = 0, 0
        # Blocks that those which pass the oldest may come to hold, counted when first asked for.
        self._beside: int | None = None
        self._taken = 0
        self.oldest = self._oldest_ready() if self.slots > 0 else None
        if self.oldest is not None and not self.fits(self.oldest):
            since = queue.place(self.oldest).since
            waited = (view.now - since) / max(cost.seconds(chunk(self.oldest.num_tokens, 0)), target)
            self._kept_blocks = int(self.needs(self.oldest) * min(waited, 1.0))
            self._kept_slots = int(waited >= 1.0)

    def _fits_beside(self, oldest: Request, request: Request) -> bool:
        """Whether a request's prompt and answer fit beside the oldest and those that came after it and run."""
        if self._beside is None:
            order = self._queue.key(oldest)
            passed = sum(self._most(each) for each in self._view.running if self._queue.key(each) > order)
            self._beside = self._limits.blocks - self.needs(oldest) - passed
        return self._most(request) <= self._beside - self._taken

    def _most(self, request: Request) -> int:
        return -(-(request.num_prompt_tokens + request.max_tokens) // self._limits.block)

    def _oldest_ready(self) -> Request | None:
        return next((entry[3] for entry in self._queue.by_age if self.ready(entry[3])), None)

    def ready(self, request: Request) -> bool:
        """Whether nothing but space may keep a waiting request from starting, by upstream's own rules."""
        if not self._engine.ready(request):
            return False
        if self._limits.max_loras is not None and request.lora_request:
            return len(self._loras) < self._limits.max_loras or request.lora_request.lora_int_id in self._loras
        return True

    def needs(self, request: Request) -> int:
        """The free blocks that a waiting request takes, those it shares with running ones not counted."""
        if request not in self._needed:
            self._needed[request] = self._engine.blocks(request, shares=self._queue.place(request).hit > 0)
        return self._needed[request]

    def fits(self, request: Request) -> bool:
        """Whether a ready request may start, without what is kept for an older one."""
        if self.slots <= 0:
            return False
        if not self._view.running:
            # Nothing will ever free more.
            return request is self.oldest or self.needs(request) <= self.blocks - self._kept_blocks
        needs, free = self.needs(request), self.blocks
        if self._view.reserved_blocks:
            # What running prefills take while this one is there; the rest is free again before they come to it.
            stay = self._cost.seconds(chunk(request.num_tokens, 0)) + request.max_tokens * self._target
            share = stay / self._coming_seconds if stay < self._coming_seconds else 1.0
            free -= int(self._view.reserved_blocks * share)
        if needs > free:
            return False
        if self.oldest is None or request is self.oldest or not self._kept_blocks:
            return True
        room = needs <= free - self._kept_blocks
        return self.slots > self._kept_slots and (room or self._fits_beside(self.oldest, request))

    def take(self, request: Request) -> None:
        """Count a request that this step starts."""
        self.slots -= 1
        self.blocks -= self.needs(request)
        self._taken += self._most(request)
        if request.lora_request:
            self._loras.add(request.lora_request.lora_int_id)
