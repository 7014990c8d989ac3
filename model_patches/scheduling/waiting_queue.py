"""The waiting requests under length-aware scheduling, in the order of their length and of their age.

A vLLM ``RequestQueue`` that shows upstream's scheduler only what the step's plan offers; all else about it is a queue.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

# (priority, length or order of arrival, order of arrival, request); the order of arrival is unique.
Entry = tuple[int, int, int, Request]


class WaitingQueue(RequestQueue):
    """See the module's docstring.

    Args:
        length: How much there is to compute of a request before it says its next token, in tokens.
        by_priority: Whether a request's ``priority`` goes before all else; a smaller one is served first.
    """

    def __init__(self, length: Callable[[Request], int], by_priority: bool) -> None:
        self._length = length
        self._by_priority = by_priority
        self._arrivals = count()
        self._entries: dict[Request, tuple[Entry, Entry]] = {}
        self.by_length: list[Entry] = []
        self.by_age: list[Entry] = []
        # Streams that were stopped; in the order in which they were.
        self.resuming: dict[Request, None] = {}
        # The internal request for a next set is in no one's way: it is only offered.
        self._apart: set[Request] = set()
        self._offered: deque[Request] = deque()

    def offer(self, requests: Iterable[Request]) -> None:
        """Show these requests, all of which wait here, to the scheduler's next pass, in this order."""
        self._offered = deque(requests)

    def offer_apart(self, request: Request) -> None:
        """Offer the internal request too, after all others."""
        self._offered.append(request)

    @property
    def all_offered(self) -> bool:
        """Whether all that wait here are offered, the internal request aside."""
        return len(self._offered) == len(self._entries)

    def key(self, request: Request) -> tuple[int, int]:
        """A request's priority and order of arrival, which it keeps when it is preempted."""
        if not hasattr(request, "arrival_order"):
            request.arrival_order = next(self._arrivals)
        return (request.priority if self._by_priority else 0, request.arrival_order)

    def add_request(self, request: Request) -> None:
        if getattr(request, "works_apart", False):
            self._apart.add(request)
            return
        priority, order = self.key(request)
        by_length, by_age = (priority, self._length(request), order, request), (priority, order, order, request)
        self._entries[request] = by_length, by_age
        insort(self.by_length, by_length)
        insort(self.by_age, by_age)
        if request.num_output_tokens:
            self.resuming[request] = None

    def pop_request(self) -> Request:
        request = self._offered.popleft()
        self._forget(request)
        return request

    def peek_request(self) -> Request:
        return self._offered[0]

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self._forget(request)
        if request in self._offered:
            self._offered.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request in self:
                self.remove_request(request)

    def reorder(self, request: Request) -> None:
        """Put a request that changed in its new place, if it waits here."""
        if request in self._entries:
            self._forget(request)
            self.add_request(request)

    def _forget(self, request: Request) -> None:
        if request in self._apart:
            self._apart.remove(request)
            return
        self.resuming.pop(request, None)
        for entries, entry in zip((self.by_length, self.by_age), self._entries.pop(request), strict=True):
            del entries[bisect_left(entries, entry)]

    def __bool__(self) -> bool:
        """Whether the scheduler's pass has more to look at; ``len`` counts all that wait."""
        return bool(self._offered)

    def __len__(self) -> int:
        return len(self._entries) + len(self._apart)

    def __contains__(self, request: object) -> bool:
        return request in self._entries or request in self._apart

    def __iter__(self) -> Iterator[Request]:
        return chain((entry[3] for entry in self.by_age), self._apart)
