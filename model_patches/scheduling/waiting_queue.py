"""The waiting queue of length-aware scheduling: sorted by length, and for each client by age.

A vLLM ``RequestQueue`` that shows upstream's scheduler only the requests that the step's plan offers.

Clients take turns: a request gets its turn when it becomes the oldest waiting one of its client, or starts. So a client's
next request is behind at most one of each other client. Requests without a client go by arrival.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from math import inf
from operator import attrgetter, itemgetter
from weakref import WeakKeyDictionary

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

# (priority, length or order of arrival, order of arrival, request, client); the order of arrival is unique.
Entry = tuple[int, int, int, Request, "Client"]
# Maximum requests of one client to try by age, so that other clients' are tried too.
MOST_OF_CLIENT = 8


@dataclass(slots=True, eq=False)
class Client:
    """The requests of one client that have not ended."""

    name: str | None  # None for all requests without a client.
    start: int  # When one of them last started, or the first arrived; orders clients.
    turn: float = inf  # That of its oldest waiting request.
    live: set[Request] = field(default_factory=set)
    by_length: list[Entry] = field(default_factory=list)
    by_age: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class Arrival:
    """When a request arrived; kept from its arrival to its end, including while it runs."""

    order: int  # Order of arrival, which a preempted request keeps.
    since: float  # Seconds on the scheduler's clock at arrival.
    client: Client
    turn: float = inf  # Place in the order of turns, which a preempted request keeps; infinite before it has one.
    hit: int = 0  # Tokens in the prefix cache when the request was last inserted.


class WaitingQueue(RequestQueue):
    """See the module docstring.

    ``look`` returns a request's length (its remaining prefill time, in tokens) and its tokens in the prefix cache.
    ``by_priority`` puts a request's ``priority`` before length and age; smaller values are served first. ``client_of``
    returns the name of a request's client.
    """

    def __init__(
        self, look: Callable[[Request], tuple[int, int]], by_priority: bool, clock: Callable[[], float],
        client_of: Callable[[Request], str | None] = lambda _: None,
    ) -> None:  # fmt: skip
        # The last internal request of background prefill; it can be offered, but is in neither order.
        self.internal: Request | None = None
        self._look, self._by_priority, self._clock, self._client_of = look, by_priority, clock, client_of
        # Numbers arrivals, starts and turns.
        self._orders = count()
        self._clients: dict[str | None, Client] = {}
        self._arrived: WeakKeyDictionary[Request, Arrival] = WeakKeyDictionary()
        self._entries: dict[Request, tuple[Entry, Entry]] = {}
        self.by_length: list[Entry] = []
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
            name, order = self._client_of(request), next(self._orders)
            client = self._clients.setdefault(name, Client(name, order))
            client.live.add(request)
            arrival = Arrival(order, self._clock(), client, order if name is None else inf)
            self._arrived[request] = arrival
        return arrival

    def key(self, request: Request) -> tuple[int, float, int]:
        """Return a request's priority, turn and order of arrival."""
        arrival = self.arrival(request)
        return (request.priority if self._by_priority else 0, arrival.turn, arrival.order)

    def waiting_clients(self, by: str) -> list[Client]:
        """Return the clients with waiting requests, in the order of their attribute ``by``: ``turn`` or ``start``."""
        return sorted((each for each in self._clients.values() if each.by_age), key=attrgetter(by))

    def in_turn(self) -> Iterable[Entry]:
        """Return waiting requests in the order of their clients' turns, each client's oldest first."""
        entries = chain.from_iterable(
            islice(each.by_age, None if each.name is None else MOST_OF_CLIENT) for each in self.waiting_clients("turn")
        )
        return sorted(entries, key=itemgetter(0)) if self._by_priority else entries

    def ended(self, request: Request) -> None:
        """Count a request no longer as one of its client's."""
        client = self.arrival(request).client
        client.live.discard(request)
        if not client.live:
            self._clients.pop(client.name, None)

    def add_request(self, request: Request) -> None:
        if request is self.internal:
            self._internal_waits = True
            return
        arrival, (priority, _, order) = self.arrival(request), self.key(request)
        client = arrival.client
        length, arrival.hit = self._look(request)
        by_length, by_age = (priority, length, order, request, client), (priority, order, order, request, client)
        self._entries[request] = by_length, by_age
        for entries, entry in ((self.by_length, by_length), (client.by_length, by_length), (client.by_age, by_age)):
            insort(entries, entry)
        self._line_up(client)
        if request.num_output_tokens:
            self.resuming[request] = None

    def pop_request(self) -> Request:
        request = self._offered.popleft()
        self._forget(request)
        arrival = self.arrival(request)
        arrival.client.start = next(self._orders)
        arrival.turn = min(arrival.turn, arrival.client.start)
        self._line_up(arrival.client)
        return request

    def _line_up(self, client: Client) -> None:
        """Give a client's oldest waiting request its turn."""
        if client.by_age:
            oldest = self._arrived[client.by_age[0][3]]
            client.turn = oldest.turn = min(oldest.turn, next(self._orders))

    def peek_request(self) -> Request:
        return self._offered[0]

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self._forget(request)
        self._line_up(self.arrival(request).client)
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
        client, (by_length, by_age) = self.arrival(request).client, self._entries.pop(request)
        for entries, entry in ((self.by_length, by_length), (client.by_length, by_length), (client.by_age, by_age)):
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
        return chain((entry[3] for entry in self.by_length), apart)
