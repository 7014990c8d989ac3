"""Decides which waiting requests may start in a step; a long one neither blocks those behind it nor starves.

A request starts when a slot and blocks for all of its tokens are free, not counting blocks that running prefills will need
while it runs. The more slots a client holds, the more it leaves free (Choudhury and Hahne, Dynamic Queue Length Thresholds,
1998). While the oldest waiting request of the client in turn does not fit, others may pass it. As it ages, a growing share
of its blocks is reserved for it: its waiting time divided by its own prefill time. Once that share reaches 1, a slot is
reserved too, and only requests that fit next to it may pass, so they do not delay it (backfilling in batch systems: Lifka,
The ANL/IBM SP scheduling system, 1995).
"""

from collections import Counter
from collections.abc import Iterator

from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.engine import Limits, SchedulerEngine, StepView
from ropeswitch.model_patches.scheduling.step_cost import StepCost, chunk
from ropeswitch.model_patches.scheduling.waiting_queue import Client, Entry, WaitingQueue

# A client leaves one slot free for every so many that it holds, up to a maximum.
HELD_PER_FREE, MOST_FREE = 7, 8


class Admission:
    """Counts the slots and blocks that one step may hand out, and those reserved for the oldest request if it does not fit.

    ``target`` is the minimum wait, in seconds, before all of a request's blocks and a slot are reserved.
    """

    def __init__(
        self,
        view: StepView,
        limits: Limits,
        engine: SchedulerEngine,
        queue: WaitingQueue,
        cost: StepCost,
        target: float,
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
        self._reserved_slots, self._reserved_blocks = 0, 0
        # Requests of each client that this step starts.
        self._started: Counter[Client] = Counter()
        # Blocks left for requests that pass the oldest one; computed on first use.
        self._beside: int | None = None
        self._taken = 0
        self.oldest = next(self.in_turn(), None) if self.slots > 0 else None
        if self.oldest is not None:
            fits = self.fits(self.oldest)
            since = queue.arrival(self.oldest).since
            waited = (view.now - since) / max(cost.seconds(chunk(self.oldest.num_tokens, 0)), target)
            self._reserved_blocks = int(self.needs(self.oldest) * min(waited, 1.0))
            self._reserved_slots = int(waited >= 1.0 and not fits)

    def _fits_beside(self, oldest: Request, request: Request) -> bool:
        """Whether a request's prompt and answer fit next to the oldest one and the running requests that arrived later."""
        if self._beside is None:
            order = self._queue.key(oldest)
            passed = sum(self._engine.most_blocks(each) for each in self._view.running if self._queue.key(each) > order)
            self._beside = self._limits.blocks - self.needs(oldest) - passed
        return self._engine.most_blocks(request) <= self._beside - self._taken

    def in_turn(self) -> Iterator[Request]:
        """Return the waiting requests that need only space to start, in the order of their clients' turns."""
        return (each[3] for each in self._queue.in_turn() if not self.leaves_slot(each) and self.ready(each[3]))

    def leaves_slot(self, entry: Entry) -> bool:
        """Whether a waiting request must leave the free slots to preempted ones, which resume first, or to other clients."""
        request, client = entry[3:]
        if request in self._queue.resuming:
            return False
        held = 0 if client.name is None else len(client.live) - len(client.by_age) + self._started[client]
        return self.slots <= len(self._queue.resuming) + min(held // HELD_PER_FREE, MOST_FREE)

    def ready(self, request: Request) -> bool:
        """Whether a waiting request needs only space to start, by upstream's rules."""
        if not self._engine.ready(request):
            return False
        if self._limits.max_loras is not None and request.lora_request:
            return len(self._loras) < self._limits.max_loras or request.lora_request.lora_int_id in self._loras
        return True

    def needs(self, request: Request) -> int:
        """Free blocks that a waiting request needs, excluding blocks that it shares with running requests."""
        if request not in self._needed:
            self._needed[request] = self._engine.blocks(request, shares=self._queue.arrival(request).hit > 0)
        return self._needed[request]

    def fits(self, request: Request) -> bool:
        """Whether a ready request may start without using slots or blocks reserved for an older one."""
        if self.slots <= 0:
            return False
        if not self._view.running:
            # No running request will free any more.
            return request is self.oldest or self.needs(request) <= self.blocks - self._reserved_blocks
        needs, free = self.needs(request), self.blocks
        if self._view.reserved_blocks:
            # Running prefills take this share while the request runs; it frees its own blocks before they need the rest.
            stay = self._cost.seconds(chunk(request.num_tokens, 0)) + request.max_tokens * self._target
            share = stay / self._coming_seconds if stay < self._coming_seconds else 1.0
            free -= int(self._view.reserved_blocks * share)
        if needs > free:
            return False
        if self.oldest is None or request is self.oldest or not self._reserved_blocks:
            return True
        room = needs <= free - self._reserved_blocks
        return self.slots > self._reserved_slots and (room or self._fits_beside(self.oldest, request))

    def deduct(self, request: Request) -> None:
        """Deduct the slot and blocks of a request that this step starts."""
        self.slots -= 1
        self._started[self._queue.arrival(request).client] += 1
        self.blocks -= self.needs(request)
        self._taken += self._engine.most_blocks(request)
        if request.lora_request:
            self._loras.add(request.lora_request.lora_int_id)
