"""The waiting queue against a plain list that is sorted whenever it is read."""

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm import SamplingParams
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue

NAMES = count()


def request(length: int, priority: int) -> Request:
    return Request(str(next(NAMES)), [1] * length, SamplingParams(max_tokens=1), None, priority=priority)


class Queue(RuleBasedStateMachine):
    """Adds, removes, offers and pops at random."""

    by_priority = False

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue(lambda each: (each.num_tokens, 0), self.by_priority, lambda: 0.0)
        self.waiting: list[Request] = []
        self.arrived: dict[Request, int] = {}

    @rule(length=st.integers(1, 5), priority=st.integers(0, 2))
    def add(self, length: int, priority: int) -> None:
        new = request(length, priority)
        self.arrived[new] = len(self.arrived)
        self.queue.add_request(new)
        self.waiting.append(new)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave_and_come_back(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.waiting), unique=True))
        self.queue.remove_requests(some)
        assert not any(each in self.queue for each in some)
        self.queue.prepend_requests(some)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), tokens=st.integers(1, 3))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        some = data.draw(st.sampled_from(self.waiting))
        some.append_output_token_ids([1] * tokens)
        self.queue.reorder(some)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def offer_and_pop(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.waiting), unique=True))
        self.queue.offer(some)
        for each in some:
            assert self.queue and self.queue.peek_request() is each and self.queue.pop_request() is each
            self.waiting.remove(each)
        assert not self.queue

    @invariant()
    def is_in_order(self) -> None:
        def key(each: Request) -> tuple[int, int]:
            return (each.priority if self.by_priority else 0, self.arrived[each])

        assert len(self.queue) == len(self.waiting) and set(self.queue) == set(self.waiting)
        assert [entry[3] for entry in self.queue.in_turn()] == sorted(self.waiting, key=key)
        expected = sorted(self.waiting, key=lambda each: (key(each)[0], each.num_tokens, key(each)[1]))
        assert [entry[3] for entry in self.queue.by_length] == expected
        assert set(self.queue.resuming) == {each for each in self.waiting if each.num_output_tokens}


def test_clients_take_turns_however_many_requests_they_have() -> None:
    names: dict[Request, str | None] = {}
    queue = WaitingQueue(lambda each: (each.num_tokens, 0), False, lambda: 0.0, names.__getitem__)

    def add(client: str | None, length: int = 1) -> Request:
        names[new := request(length, 0)] = client
        queue.add_request(new)
        return new

    def start(started: Request) -> None:
        queue.offer([started])
        assert queue.pop_request() is started

    lists = [add("a", length) for length in (5, 1, 2, 3)]
    late, anyone = add("b"), add(None)
    served = []
    for _ in range(3):
        served.append(next(iter(queue.in_turn()))[3])
        start(served[-1])
    assert served == [lists[0], late, anyone]
    # One that passes its client's oldest leaves that one's turn as it was, and the next start to the other clients.
    start(lists[3])
    newcomer = add("c")
    assert [client.name for client in queue.waiting_clients("turn")] == ["a", "c"]
    start(newcomer)
    more = add("c")
    assert [client.name for client in queue.waiting_clients("start")] == ["a", "c"]
    assert [len(client.live) - len(client.by_age) for client in queue.waiting_clients("start")] == [2, 1]
    # A preempted request comes before all that came after it, other clients' too.
    queue.prepend_request(lists[0])
    assert next(iter(queue.in_turn()))[3] is lists[0]
    for each in (*lists, late, anyone, newcomer, more):
        queue.remove_requests([each])
        queue.ended(each)
    assert not queue.waiting_clients("turn") and not queue._clients


class PriorityQueue(Queue):
    by_priority = True


TestQueue = Queue.TestCase
TestPriorityQueue = PriorityQueue.TestCase
TestQueue.settings = TestPriorityQueue.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
