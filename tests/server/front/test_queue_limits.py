"""What may be in flight and wait for its first token: counts against a plain model of them, and what clients see."""

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.websockets import WebSocket

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.limits.keys import digest
from ropeswitch.server.front.limits.queue_limits import Admission
from ropeswitch.server.front.refusal import Refusal, RefusedError
from ropeswitch.server.front.state import build
from tests.server.front.parts import LADDER, Clock, Engine, app_behind, ask, bearer, parts, taking


class Asking:
    """A request of a client, which has begun."""

    def __init__(self, queue: Admission, client: str = "a") -> None:
        self.queue, self.client, self.context = queue, client, RequestContext(client=client.encode())
        queue.begin(self.context)

    def admit(self, tokens: int, copies: int = 1, name: str = "r") -> Refusal | None:
        """Admit a prompt; return its refusal."""
        token = current.set(self.context)
        try:
            self.queue.admit(tokens, LADDER.index_for(min(tokens, LADDER.max_length)), copies, name)
        except RefusedError as error:
            return error.refusal
        finally:
            current.reset(token)
        return None

    def end(self) -> None:
        self.queue.end(self.context)


def waiting(queue: Admission, index: int) -> tuple[int, int]:
    return queue.classes[index].requests.total, queue.classes[index].tokens.total


def test_a_full_class_leaves_the_other_and_tells_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = Engine(), Clock()
    queue = parts(engine, max_queued_requests={None: 100, "long": 4}).queue
    monkeypatch.setattr("ropeswitch.server.front.limits.queue_limits.time.monotonic", clock)
    for name in ("0", "1"):
        assert Asking(queue).admit(12, name=name) is None
        engine.requests[name] = True
    for waited, expected in ((0.0, 1), (0.5, 1), (7.2, 8), (500.0, 60)):
        clock.now = 1000 + waited
        refusal = Asking(queue).admit(9)
        assert refusal is not None and (refusal.status, refusal.code) == (503, "queue_full")
        assert "--max-queued-requests: 2 of at most 4 requests of length class 'long' wait" in refusal.message
        assert refusal.retry_after == expected
    mixed = Asking(queue)
    assert mixed.admit(8) is None and mixed.admit(9) is not None
    mixed.end()
    assert waiting(queue, 0) == (0, 0)
    # What is computed waits no more, though it is still being answered.
    engine.requests["0"] = False
    queue.look()
    assert Asking(queue).admit(9) is None


def test_what_never_fits_is_the_clients_mistake() -> None:
    """Also in an empty class, and in parts: a retry would not help."""
    limits = {"max_queued_tokens": {None: 1000, "short": 32}, "max_queued_requests": {None: 8}}
    queue = parts(Engine(), **limits, max_sequences_per_key=6, max_tokens_per_key=20).queue
    for prompts, flag, value in (
        ([(1, 5)], "--max-queued-requests 8", 5),
        ([(1, 2), (1, 3)], "--max-queued-requests 8", 5),
        ([(1, 4), (9, 3)], "--max-sequences-per-key 6", 7),
        ([(8, 2), (1, 1)], "--max-queued-tokens 32", 17),
        ([(8, 1), (13, 1)], "--max-tokens-per-key 20", 21),
    ):
        asking = Asking(queue)
        *accepted, refusal = [asking.admit(*each) for each in prompts]
        assert not any(accepted) and refusal is not None, flag
        assert (refusal.status, refusal.param, refusal.retry_after) == (400, "prompt", None)
        assert f"({flag})" in refusal.message and f": {value} " in refusal.message, refusal.message
        asking.end()
    asking = Asking(queue)
    assert asking.admit(8, 2) is None and asking.admit(9) is not None and waiting(queue, 0) == (2, 16)


def test_sequences_and_tokens_of_a_client_count_until_its_requests_end() -> None:
    queue = parts(Engine(), max_sequences_per_key=8, max_tokens_per_key=50).queue
    first, second, other = Asking(queue), Asking(queue), Asking(queue, "b")
    # It takes the place of the sequence that its request began with; being computed changes nothing.
    assert first.admit(2, 6) is None and queue.sequences.held[b"a"] == 7
    queue.look()
    assert other.admit(8, 6) is None
    for refusal, expected in (
        (second.admit(1, 3), "--max-sequences-per-key: this client has 7 of at most 8 sequences"),
        (Asking(queue, "b").admit(3), "--max-tokens-per-key: this client has 48 of at most 50 tokens"),
    ):
        assert refusal is not None and expected in refusal.message
        assert (refusal.status, refusal.reason, refusal.retry_after) == (429, "key_concurrency", 1)
    for asking in (first, second, other):
        asking.end()
    assert queue.sequences.held == {b"b": 1} and not queue.tokens.held
    # A response in the background goes on after its request.
    assert first.admit(1) is None and queue.sequences.held == {b"b": 1}


STEP = st.tuples(st.integers(0, 9), st.integers(1, 16), st.integers(1, 3), st.sampled_from("aawdlge"))


@settings(max_examples=50)
@given(st.lists(STEP, max_size=80))
def test_counts_are_those_of_what_waits(steps: list[tuple[int, int, int, str]]) -> None:
    """Any order of what happens to three clients' requests: prompts waiting, computed, gone, and requests ended."""
    engine = Engine()
    limits = {"max_queued_requests": {None: 12}, "max_queued_tokens": {None: 80}}
    queue = parts(engine, **limits).queue
    running: dict[int, Asking] = {}
    for number, tokens, copies, step in steps:
        name = str(number)
        if step == "a":
            if number not in running:
                running[number] = Asking(queue, "abc"[number % 3])
            running[number].admit(tokens, copies, name)
        elif step in "wd" and number in running:
            engine.requests[name] = step == "w"
        elif step == "g":
            engine.requests.pop(name, None)
        elif step == "l":
            queue.look()
        elif step == "e" and number in running:
            running.pop(number).end()
        tickets = list(queue._tickets.values())
        for index in range(2):
            mine = [each for each in tickets if each.index == index]
            assert waiting(queue, index) == (sum(each.requests for each in mine), sum(each.tokens for each in mine))
        for client in "abc":
            alive = [each.context for each in running.values() if each.client == client]
            begun = [[each.requests for each in context.entered.tickets] for context in alive]
            assert queue.sequences.held[client.encode()] == sum(max(1, sum(each)) for each in begun)
    engine.requests.clear()
    for asking in running.values():
        asking.end()
    queue.look()
    assert [waiting(queue, index) for index in range(2)] == [(0, 0), (0, 0)]
    assert not queue.sequences.held and not queue.tokens.held


def test_a_prompt_longer_than_the_limit_is_refused_and_the_servers_own_are_not_counted() -> None:
    queue = parts(max_prompt_tokens=10).queue
    queue.admit(12, 1, 1, "warm-up")
    assert waiting(queue, 1) == (0, 0)
    asking = Asking(queue)
    assert asking.admit(10) is None
    refusal = asking.admit(11)
    assert refusal is not None and (refusal.status, refusal.code) == (400, "context_length_exceeded")
    assert (refusal.param, refusal.reason, asking.context.refused_tokens) == ("prompt", "prompt_tokens", 11)


@pytest.mark.parametrize("longest", [4096, 1 << 22])
def test_honest_requests_fit_by_default(longest: int) -> None:
    """128 prompts of up to 8,192 tokens with n = 8, three of them at once, and four prompts of the longest length."""
    sets = [{"name": "short", "max_length": 8, "factors": [1.0, 2.0]}, {"name": "long", "max_length": longest}]
    ladder = FactorLadder.checked([sets[0], sets[1] | {"factors": [1.5, 3.0]}])
    queue = build(taking(), ladder, longest, Engine().waits, RefusedError).queue
    size = min(longest, 8192)
    for requests, prompts, tokens, copies in ((1, 128, size, 8), (3, 128, 1024, 8), (4, 1, longest, 1)):
        asked = [Asking(queue) for _ in range(requests)]
        assert not any(each.admit(tokens, copies, str(number)) for each in asked for number in range(prompts))
        for each in asked:
            each.end()


def test_requests_and_websockets_of_a_key_count_while_they_run() -> None:
    state = parts(keys=["a", "b"], max_sequences_per_key=2)
    app, held = app_behind(state), state.queue.sequences.held

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        await socket.close()

    client = TestClient(app, headers=bearer("a"))
    with client.websocket_connect("/v1/realtime") as one, client.websocket_connect("/v1/realtime") as other:
        assert held == {digest(b"a"): 2}
        with pytest.raises(Exception), client.websocket_connect("/v1/realtime"):  # noqa: B017 - of the test client's own
            pass
        # Probes, scrapes, requests that start no work, and those without a key are not counted.
        for method, path, key, status in (
            ("POST", "/v1/length", "a", 429),
            ("GET", "/v1/length", "a", 405),
            ("POST", "/v1/length", "wrong", 401),
            ("POST", "/v1/length", "b", 200),
            ("POST", "/health", "a", 404),
            ("GET", "/metrics", "a", 404),
        ):
            assert ask(app, method, path, headers=bearer(key)).status_code == status
        one.send_text("done")
        other.send_text("done")
    assert not held
    assert ask(app, "POST", "/v1/length", headers=bearer("a")).status_code == 200 and not held
