"""The waiting queue of length-aware scheduling, sorted by length and by age.

A vLLM ``RequestQueue`` that shows upstream's scheduler only the requests that the step's plan offers.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from weakref import WeakKeyDictionary

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

# (priority, length or order of arrival, order of arrival, request); the order of arrival is unique.
Entry = tuple[int, int, int, Request]


@dataclass(slots=True)
class Arrival:
    """When a request arrived; kept from its arrival to its end, including while it runs."""

    order: int  # Order of arrival, which a preempted request keeps.
    since: float  # Seconds on the scheduler's clock at arrival.
    hit: int = 0  # Tokens in the prefix cache when the request was last inserted.


class WaitingQueue(RequestQueue):
    """See the module docstring.

    ``look`` returns a request's length (its remaining prefill time, in tokens) and its tokens in the prefix cache.
    ``by_priority`` puts a request's ``priority`` before length and age; smaller values are served first.
    """

    def __init__(
        self, look: Callable[[Request], tuple[int, int]], by_priority: bool, clock: Callable[[], float]
    ) -> None:
        # The last internal request of background prefill; it can be offered, but is in neither order.
        self.internal: Request | None = None
        self._look, self._by_priority, self._clock = look, by_priority, clock
        self._orders = count()
        self._arrived: WeakKeyDictionary[Request, Arrival] = WeakKeyDictionary()
        self._entries: dict[Request, tuple[Entry, Entry]] = {}
        self.by_length: list[Entry] = []
        self.by_age: list[Entry] = []
        # Preempted requests that have generated tokens, in order of preemption.
        self.resuming: dict[Request, None] = {}
        self._internal_waits = False
        self._offered: deque[Request] = deque()

    def offer(self, requests: Iterable[Request]) -> None:
        """Offer these waiting requests to the scheduler's next pass, in this order."""
        self._offered = deque(requests)

    @property
    def num_offerable(self) -> int:
        """Number of waiting requests, excluding the internal request."""
        return len(self._entries)

    def arrival(self, request: Request) -> Arrival:
        """Return when a request arrived: at the first call."""
        arrival = self._arrived.get(request)
        if arrival is None:
            arrival = self._arrived[request] = Arrival(next(self._orders), self._clock())
        return arrival

    def key(self, request: Request) -> tuple[int, int]:
        """Return a request's priority and order of arrival, which it keeps when preempted."""
        return (request.priority if self._by_priority else 0, self.arrival(request).order)

    def add_request(self, request: Request) -> None:
        if request is self.internal:
            self._internal_waits = True
            return
        priority, order = self.key(request)
        length, self.arrival(request).hit = self._look(request)
        by_length, by_age = (priority, length, order, request), (priority, order, order, request)
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
        """Re-sort a changed request, if it is queued here."""
        if request in self._entries:
            self._forget(request)
            self.add_request(request)

    def _forget(self, request: Request) -> None:
        if request is self.internal:
            self._internal_waits = False
            return
        self.resuming.pop(request, None)
        for entries, entry in zip((self.by_length, self.by_age), self._entries.pop(request), strict=True):
            del entries[bisect_left(entries, entry)]

    def __bool__(self) -> bool:
        """Whether requests are offered to the scheduler; ``len`` counts all waiting ones."""
        return bool(self._offered)

    def __len__(self) -> int:
        return len(self._entries) + self._internal_waits

    def __contains__(self, request: object) -> bool:
        return request in self._entries or (self._internal_waits and request is self.internal)

    def __iter__(self) -> Iterator[Request]:
        apart = [self.internal] if self._internal_waits and self.internal is not None else []
        return chain((entry[3] for entry in self.by_age), apart)
