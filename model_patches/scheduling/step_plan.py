"""Chooses the prefills of the next step and how many tokens each gets, so that no request waits long for a long prompt.

The plan is a :class:`StepDecision`: running prefills that were not chosen are held, the waiting queue offers only the chosen
ones, and the token budget exactly covers the chosen prefills and the decoding requests.

Two kinds of step alternate. A *short* step serves whole prefills that fit in one step, shortest first; a *long* step serves
a chunk of one prefill. Short steps go first until together they have taken twice the target. Then a long step is due,
alternately for the oldest prefill and for the shortest long one. So the oldest prefill gets at least an eighth of the time,
from which docs/scheduling.md derives the bound on any wait.
Clients take turns as the oldest, and a short step begins with the client whose last start is the longest ago.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from operator import attrgetter, itemgetter

from vllm.v1.request import Request, RequestStatus

from ropeswitch.model_patches.scheduling.admission import Admission
from ropeswitch.model_patches.scheduling.decision import StepDecision
from ropeswitch.model_patches.scheduling.engine import Limits, SchedulerEngine, StepView
from ropeswitch.model_patches.scheduling.step_cost import StepCost, chunk
from ropeswitch.model_patches.scheduling.waiting_queue import Client, WaitingQueue

# A chunk may always have up to twice this many tokens, whatever ran before.
LEAST_KNOWN = 64
# Maximum waiting requests that need only space to try per step and order.
MOST_TRIED = 32
# Prefills get at least this share of the target, and at least this share of the decoding requests' own time.
LEAST_OF_TARGET, LEAST_OF_DECODES = 0.25, 0.5
# Total time of short steps between two long ones, as a multiple of the target.
SHORT_TURN = 2.0
# With nothing urgent, a step may take this share of the time since the last urgent work, so an arrival waits little longer.
LULL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Prefill:
    """A request with tokens to compute before it can generate one."""

    # (priority, length, order of arrival): shortest first within a priority. The length is the number of tokens at the
    # start of a sequence that take as long to compute as the remaining ones.
    order: tuple[int, int, int]
    request: Request
    remaining: int  # Tokens to compute.
    before: int  # Tokens already computed, or expected in the prefix cache.
    waits: bool  # Whether it is in the waiting queue.


def whole_items(prefill: Prefill, count: int, most: int) -> int:
    """Return the tokens of a chunk of ``count`` that ends in no image or other item, where ``most`` tokens allow it.

    Upstream only shortens a chunk to the start of an item, so one that starts there must reach its end.
    """
    end = prefill.before + count
    for feature in prefill.request.mm_features:
        start, stop = feature.mm_position.offset, feature.mm_position.offset + feature.mm_position.length
        if start < end < stop:
            if stop - prefill.before <= most:
                return stop - prefill.before
            return start - prefill.before if start > prefill.before else count
    return count


class StepPlan:
    """Plans steps, one at a time; each should take ``target`` seconds while anything urgent runs or waits."""

    admission: Admission  # Slots and blocks after the last planned step.

    def __init__(
        self, limits: Limits, engine: SchedulerEngine, queue: WaitingQueue, cost: StepCost, target: float
    ) -> None:
        self._limits, self._engine, self._queue = limits, engine, queue
        self.cost, self.target = cost, target
        # Seconds of short steps since the last long one, and whether the oldest prefill is due in the next long one.
        self._short_seconds = 0.0
        self._oldest_is_due = True
        self._turn = (0.0, True)
        self._chosen: list[Request] = []
        self._resuming: set[Request] = set()
        self._refused: set[Request] = set()
        self._last_count = LEAST_KNOWN
        self._now = 0.0
        self._may_start = False
        # Long ago: nothing has been urgent yet.
        self._last_urgent = -1e9

    def plan(self, view: StepView) -> StepDecision:
        """Choose the next step's prefills."""
        self._now, load, taken = view.now, view.decodes, int(view.decodes.tokens)
        self._resuming = set()
        self.admission = Admission(view, self._limits, self._engine, self._queue, self.cost, self.target)
        self._may_start = view.unpaused and self.admission.slots > 0
        # Upstream itself starts waiting requests that hold blocks, unless they are held.
        holders = [each for each in view.holding if self.admission.slots > 0 and self.admission.ready(each)]
        here = [
            self._prefill(
                each,
                each.num_tokens_with_spec + each.num_output_placeholders - each.num_computed_tokens,
                each.num_computed_tokens,
                False,
            )
            for each in chain(view.prefills, holders)
        ]
        here.sort(key=attrgetter("order"))
        if taken:
            self._last_urgent = self._now
        room = self.room(self.target, self.cost.seconds(load))
        resumed = self._resumed(max(room, self.target))
        for prefill in resumed:
            load += chunk(prefill.remaining, prefill.before)
            taken += self._budget(prefill, prefill.remaining)
        shortest = next(self._candidates(here), None)
        short = shortest is not None and self._seconds(shortest) <= room
        if resumed or short:
            self._last_urgent = self._now
        busy = self.cost.seconds(load)
        room = self.room(max(self.target, LULL_SHARE * (self._now - self._last_urgent)), busy)
        chosen: list[tuple[Prefill, int]] = []
        if shortest is not None:
            # Leave room for a chunk even if decoding requests fill the budget; the last of them then miss a step.
            left = max(self._limits.tokens - taken, self._limits.least_chunk)
            chosen = self._choose(here, shortest, short, busy, room, left)
        self._chosen = [prefill.request for prefill, _ in chosen]
        partial = len(chosen) == 1 and chosen[0][1] < chosen[0][0].remaining
        offered = [*resumed, *(each for each, _ in chosen if each.waits)]
        return StepDecision(
            held={prefill.request for prefill in here}.union(view.holding).difference(self._chosen),
            budget=min(taken + sum(self._budget(*each) for each in chosen), self._limits.tokens),
            chunk=chosen[0][1] if partial else 0,
            offered=tuple(prefill.request for prefill in offered),
            busy=busy,
            spare=0.0 if resumed or chosen else room,
            sort=not view.in_order,
        )

    def room(self, seconds: float, busy: float) -> float:
        """Return the seconds that prefills may take in a step of ``seconds``, of which decoding requests take ``busy``."""
        return max(seconds - busy, LEAST_OF_TARGET * self.target, LEAST_OF_DECODES * busy)

    @property
    def chosen_any(self) -> bool:
        """Whether the last planned step has a prefill."""
        return bool(self._chosen or self._resuming)

    def scheduled(self, counts: dict[str, int], throttled: bool) -> None:
        """Count the turn as taken if the output's ``num_scheduled_tokens`` has any chosen prefill."""
        # Upstream refused these for a reason unknown here, so other requests come first in the next step.
        self._refused = set() if throttled else {each for each in self._chosen if each.request_id not in counts}
        if any(request.request_id in counts for request in self._chosen):
            self._short_seconds, self._oldest_is_due = self._turn
            if self._short_seconds == 0.0:
                longest = max(counts.get(request.request_id, 0) for request in self._chosen)
                self._last_count = max(LEAST_KNOWN, longest)

    def _prefill(self, request: Request, remaining: int, before: int, waits: bool) -> Prefill:
        priority, _, order = self._queue.key(request)
        return Prefill((priority, self.cost.length(remaining, before), order), request, remaining, before, waits)

    def _waiting_prefill(self, request: Request) -> Prefill:
        hit = self._queue.arrival(request).hit
        return self._prefill(request, request.num_tokens - hit, hit, True)

    def _seconds(self, prefill: Prefill) -> float:
        return self.cost.seconds(chunk(prefill.remaining, prefill.before))

    def _resumed(self, room: float) -> list[Prefill]:
        """Admit and return preempted requests whose remaining tokens fit in any step; they resume now."""
        found: list[Prefill] = []
        for request in sorted(self._queue.resuming, key=self._queue.key) if self._may_start else ():
            prefill = self._waiting_prefill(request)
            if self._seconds(prefill) <= room and self._admitted(request):
                self.admission.deduct(request)
                self._resuming.add(request)
                room -= self._seconds(prefill)
                found.append(prefill)
        return found

    def _admitted(self, request: Request) -> bool:
        """Whether a waiting request may start in this step."""
        if request in self._resuming or request in self._refused:
            return False
        return self.admission.ready(request) and self.admission.fits(request)

    def _candidates(self, here: list[Prefill], at_least: int = 0) -> Iterator[Prefill]:
        """Yield prefills of the best priority that may get tokens in this step, shortest first."""
        best, refused = None, 0
        for prefill in merge(here, self._waiting(at_least), key=attrgetter("order")):
            if prefill.order[1] < at_least or prefill.request in self._refused:
                continue
            if prefill.waits and not self._admitted(prefill.request):
                # Finding out that a request waits for something else, such as a grammar, costs little.
                refused += self.admission.ready(prefill.request)
                if refused > MOST_TRIED:
                    return
                continue
            if best is not None and prefill.order[0] != best:
                return
            best = prefill.order[0]
            yield prefill

    def _waiting(self, at_least: int = 0) -> Iterator[Prefill]:
        if self._may_start and self.admission.slots > 0:
            entries = self._queue.by_length
            # The list is sorted by length within each priority; with several priorities, read it from its start.
            one = bool(entries) and entries[0][0] == entries[-1][0]
            left: set[Client] = set()
            for entry in islice(entries, bisect_left(entries, at_least, key=itemgetter(1)) if one else 0, None):
                request, client = entry[3:]
                if (client in left or self.admission.leaves_slot(entry)) and request not in self._queue.resuming:
                    left.add(client)
                    continue
                hit = self._queue.arrival(request).hit
                yield Prefill(entry[:3], request, request.num_tokens - hit, hit, True)

    def _oldest(self, here: list[Prefill], shortest: Prefill) -> Prefill:
        """Return the oldest prefill of the best priority among those tried; that may be the shortest."""
        found = [shortest, *(prefill for prefill in here if prefill.request not in self._refused)]
        if self._may_start and self.admission.slots > 0:
            ready = islice(self.admission.in_turn(), MOST_TRIED)
            first = next((request for request in ready if self._admitted(request)), None)
            if first is not None:
                found.append(self._waiting_prefill(first))
        return min(found, key=lambda prefill: self._queue.key(prefill.request))

    def _next_client(self, priority: int, room: float, tokens: int) -> Iterator[Prefill]:
        """Yield the shortest prompt of the client whose last start is the longest ago, if several wait and it fits whole."""
        clients = self._queue.waiting_clients("start") if self._may_start else []
        for entry in [each.by_length[0] for each in clients[:MOST_TRIED]] if len(clients) > 1 else ():
            prefill = self._waiting_prefill(entry[3])
            whole = self._seconds(prefill) <= room and prefill.remaining <= min(tokens, self._limits.chunk)
            may_start = entry[0] == priority and not self.admission.leaves_slot(entry)
            if whole and may_start and self._admitted(entry[3]):
                yield prefill
                return

    def _choose(
        self, here: list[Prefill], shortest: Prefill, short: bool, busy: float, room: float, tokens: int
    ) -> list[tuple[Prefill, int]]:
        """Choose the step's prefills and their tokens.

        ``here`` are the running prefills; ``shortest`` is the first candidate, ``short`` if it fits whole in a step.
        Decoding takes ``busy`` seconds and leaves ``room`` seconds and ``tokens`` tokens.
        """
        if short and self._short_seconds < SHORT_TURN * self.target:
            first_one = self._next_client(shortest.order[0], room, tokens)
            chosen = self._fill(chain(first_one, self._candidates(here)), room, tokens)
            spent = sum(self.cost.seconds(chunk(count, each.before)) for each, count in chosen)
            self._turn = (self._short_seconds + busy + spent, self._oldest_is_due)
            return chosen
        oldest = self._oldest(here, shortest)
        # Without a short prefill, the shortest counts as long, even if it fits whole in a step that has grown in a lull.
        too_long = self.cost.tokens_within(room, 0) + 1 if short else 0
        first = None if self._oldest_is_due else next(self._candidates(here, too_long), None)
        first = first or oldest
        self._turn = (0.0, first.request is not oldest.request)
        return self._fill(chain([first], self._candidates(here)), room, tokens)

    def _fill(self, candidates: Iterator[Prefill], room: float, tokens: int) -> list[tuple[Prefill, int]]:
        """Take whole prefills until one does not fit, then a chunk of it if it is alone or only tokens run out.

        A prefill that completes should not wait for a chunk of another.
        """
        chosen: list[tuple[Prefill, int]] = []
        seen: set[Request] = set()
        for prefill in candidates:
            if tokens <= 0:
                break
            if prefill.request in seen:
                continue
            seen.add(prefill.request)
            seconds = self._seconds(prefill)
            if seconds <= room and prefill.remaining <= min(tokens, self._limits.chunk):
                count = prefill.remaining
            elif not self._limits.chunked:
                if chosen or prefill.remaining > tokens:
                    break
                count = prefill.remaining
            elif not chosen:
                # While anything is urgent, at most twice the last chunk, whose time is known.
                longest = 2 * self._last_count if self._last_urgent == self._now else self._limits.tokens
                within = min(self.cost.tokens_within(room, prefill.before), longest)
                count = min(max(within, self._limits.least_chunk), prefill.remaining, tokens, self._limits.chunk)
            elif seconds <= room and prefill.waits:
                # Upstream's scheduler reaches it last, so it gets the rest of the budget.
                count = min(tokens, self._limits.chunk)
            else:
                break
            if self._limits.whole_items:
                count = whole_items(prefill, count, min(tokens, self._limits.chunk))
            chosen.append((prefill, count))
            room, tokens = room - seconds, tokens - count
            if prefill.waits:
                self.admission.deduct(prefill.request)
            if count < prefill.remaining:
                break
        return chosen

    def _budget(self, prefill: Prefill, count: int) -> int:
        # A request that starts with a single token needs budget for draft placeholders, or upstream does not schedule it.
        starts = prefill.request.status != RequestStatus.RUNNING
        drafts = self._limits.drafts if starts else 0
        return count + (drafts if count <= 1 + drafts else 0)
