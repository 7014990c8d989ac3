"""What may be in flight and wait for its first token: counts against a plain model of them, and what clients see."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.flags import QUEUED_REQUESTS, QUEUED_TOKENS
from ropeswitch.server.front.limits.queue_limits import Admission
from ropeswitch.server.front.refusal import Refusal, RefusedError, listeners
from ropeswitch.server.front.state import FrontState, build
from tests.server.front.parts import CONFIG, LADDER, Engine, HttpError, app_behind, ask, client_of, error_of, parts


def class_of(tokens: int) -> int:
    """The length class of a prompt, as ``engine_client.py`` decides it."""
    return LADDER.index_for(min(tokens, LADDER.max_length))


@dataclass
class Asking:
    """A request of a client, which has begun."""

    queue: Admission
    client: str = "a"
    context: RequestContext = field(init=False)

    def __post_init__(self) -> None:
        self.context = RequestContext(client=self.client.encode())
        self.queue.begin(self.context)

    def admit(self, tokens: int, copies: int = 1, name: str = "r") -> Refusal | None:
        """Admit a prompt; return its refusal."""
        token = current.set(self.context)
        try:
            self.queue.admit(tokens, class_of(tokens), copies, name)
        except RefusedError as error:
            return error.refusal
        finally:
            current.reset(token)
        return None

    def end(self) -> None:
        self.queue.end(self.context)


def waiting(queue: Admission, index: int) -> tuple[int, int]:
    return queue.classes[index].requests.total, queue.classes[index].tokens.total


def app_with_prompts(state: FrontState, admission: Admission, engine: Engine) -> FastAPI:
    """An app whose prompts are lists of lengths; each waits in the engine until it is done there."""
    app = app_behind(state)

    @app.exception_handler(HttpError)
    async def http_error(request: Request, error: HttpError) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error), "code": error.status}}, error.status)

    @app.post("/v1/prompts")
    async def prompts(request: Request) -> int:
        asked = await request.json()
        names = [f"{asked['id']}-{number}" for number in range(len(asked["lengths"]))]
        for name, length in zip(names, asked["lengths"], strict=True):
            admission.admit(length, class_of(length), asked.get("n", 1), name)
        if asked.get("fault"):
            raise ZeroDivisionError
        try:
            engine.requests.update(dict.fromkeys(names, True))
            await asyncio.sleep(asked.get("prefill", 0))
            engine.requests.update(dict.fromkeys(names, False))
        finally:
            for name in names:
                del engine.requests[name]
        return len(names)

    return app


def test_a_full_class_leaves_the_other(tmp_path: Path) -> None:
    engine = Engine()
    state, admission = parts(tmp_path, engine, max_queued_requests={None: 4})
    app = app_with_prompts(state, admission, engine)

    async def run() -> None:
        async with client_of(app) as client:
            slow = {"lengths": [12], "prefill": 60}
            running = [asyncio.create_task(client.post("/v1/prompts", json=slow | {"id": i})) for i in range(2)]
            while waiting(admission, 1) != (2, 24):
                await asyncio.sleep(0.001)
            refused = await client.post("/v1/prompts", json={"id": "long", "lengths": [9]})
            assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) <= 60
            error = error_of(refused)
            assert (error["type"], error["code"]) == ("server_error", "queue_full")
            assert "--max-queued-requests: 2 of at most 4 requests of length class 'long' wait" in error["message"]
            for _ in range(3):
                assert (await client.post("/v1/prompts", json={"id": "short", "lengths": [8]})).status_code == 200
            mixed = await client.post("/v1/prompts", json={"id": "mixed", "lengths": [8, 9]})
            assert mixed.status_code == 503 and waiting(admission, 0) == (0, 0)
            # What is computed waits no more, though it is still being answered.
            engine.requests["0-0"] = False
            admission.look()
            assert (await client.post("/v1/prompts", json={"id": "next", "lengths": [9]})).status_code == 200
            faulty = await client.post("/v1/prompts", json={"id": "faulty", "lengths": [8], "fault": True})
            assert faulty.status_code == 500
            assert waiting(admission, 0) == (0, 0) and admission.sequences.total == 2
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        assert waiting(admission, 1) == (0, 0) and admission.sequences.total == 0

    asyncio.run(run())


def test_tokens_and_answers_are_counted(tmp_path: Path) -> None:
    limits = {"max_queued_tokens": {"short": 40}, "max_queued_requests": {"short": 10}}
    queue = parts(tmp_path, Engine(), **limits)[0].queue
    assert Asking(queue).admit(5, 3) is None and waiting(queue, 0) == (3, 15)
    tokens = Asking(queue).admit(6)
    assert tokens is not None and tokens.reason == "queue_tokens"
    assert "--max-queued-tokens: 15 of at most 40 tokens" in tokens.message
    requests = Asking(queue).admit(1, 3)
    assert (
        requests is not None and requests.reason == "queue_requests" and "3 of at most 10 requests" in requests.message
    )
    assert Asking(queue).admit(5) is None and waiting(queue, 0) == (4, 20)


def test_no_client_fills_a_class(tmp_path: Path) -> None:
    queue = parts(tmp_path, Engine(), max_queued_requests={None: 64})[0].queue
    while Asking(queue).admit(1) is None:
        pass
    assert waiting(queue, 0)[0] == 32
    assert Asking(queue, "b").admit(1, 16) is None
    assert Asking(queue, "c").admit(1, 8) is None


def test_what_never_fits_is_the_clients_mistake(tmp_path: Path) -> None:
    """Also in an empty class, and in parts: a retry would not help."""
    limits = {"max_queued_tokens": {None: 32}, "max_queued_requests": {None: 8}}
    queue = parts(tmp_path, Engine(), **limits, max_sequences_per_key=6, max_tokens_per_key=20)[0].queue
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


def test_sequences_and_tokens_of_a_client_count_until_its_requests_end(tmp_path: Path) -> None:
    queue = parts(tmp_path, Engine(), max_sequences_per_key=8, max_tokens_per_key=50)[0].queue
    first, other = Asking(queue), Asking(queue, "b")
    # It takes the place of the sequence that its request began with; being computed changes nothing.
    assert first.admit(2, 6) is None and queue.sequences.held[b"a"] == 6
    queue.look()
    second = Asking(queue)
    sequences = second.admit(1, 3)
    assert sequences is not None and (sequences.status, sequences.retry_after) == (429, 1)
    assert "--max-sequences-per-key: this client has 7 of at most 8 sequences" in sequences.message
    tokens = second.admit(16, 2)
    assert tokens is None or tokens.status == 429
    assert other.admit(8, 6) is None
    third = Asking(queue, "b")
    tokens = third.admit(3)
    assert tokens is not None and (tokens.status, tokens.reason) == (429, "key_concurrency")
    assert "--max-tokens-per-key: this client has 48 of at most 50 tokens" in tokens.message
    for asking in (first, other, second, third):
        asking.end()
    assert not queue.sequences.held and not queue.tokens.held
    # A response in the background goes on after its request.
    assert first.admit(1) is None and not queue.sequences.held


def test_the_first_in_the_queue_tells_when_to_come_back(tmp_path: Path) -> None:
    state, _ = parts(tmp_path, Engine(), max_queued_requests={None: 1})
    now = [0.0]
    state.queue._clock = lambda: now[0]
    assert Asking(state.queue).admit(1) is None
    for waited, expected in ((0.0, 1), (0.5, 1), (7.2, 8), (500.0, 60)):
        now[0] = waited
        refusal = Asking(state.queue).admit(1)
        assert refusal is not None and (refusal.status, refusal.retry_after) == (503, expected)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 16), st.integers(1, 3), st.sampled_from("aawdlge")), max_size=80
    )
)
def test_counts_are_those_of_what_waits(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int, str]]
) -> None:
    """Any order of what happens to three clients' requests: prompts waiting, computed, gone, and requests ended."""
    engine = Engine()
    limits = {"max_queued_requests": {None: 12}, "max_queued_tokens": {None: 80}}
    queue = parts(tmp_path_factory.mktemp("front"), engine, **limits)[0].queue
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


def test_prompts_longer_than_the_limit(tmp_path: Path) -> None:
    engine = Engine()
    state, admission = parts(tmp_path, engine, max_prompt_tokens=10)
    app = app_with_prompts(state, admission, engine)
    rejected: list[tuple[str, int | None]] = []
    listeners.append(lambda reason, tokens: rejected.append((reason, tokens)))
    try:
        assert ask(app, "POST", "/v1/prompts", json={"id": "a", "lengths": [10]}).status_code == 200
        answer = ask(app, "POST", "/v1/prompts", json={"id": "b", "lengths": [10, 11]})
    finally:
        listeners.pop()
    error = error_of(answer)
    assert answer.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert "11 tokens" in error["message"] and "10 tokens" in error["message"]
    assert rejected == [("prompt_tokens", 11)]


def test_what_is_no_requests_own_is_not_counted(tmp_path: Path) -> None:
    admission = parts(tmp_path, max_prompt_tokens=1)[1]
    admission.admit(9, 1, 1, "warm-up")
    assert waiting(admission, 1) == (0, 0)


@pytest.mark.parametrize("longest", [4096, 1 << 20, 1 << 22])
def test_honest_requests_fit_by_default(tmp_path: Path, longest: int) -> None:
    """128 prompts of up to 8,192 tokens with n = 8, three of them at once, and four prompts of the longest length."""
    sets = [{"name": "short", "max_length": 8, "factors": [1.0, 2.0]}, {"name": "long", "max_length": longest}]
    ladder = FactorLadder.checked([sets[0], sets[1] | {"factors": [1.5, 3.0]}])
    queue = build(CONFIG, ladder, longest, Engine().waits, HttpError).queue
    size = min(longest, 8192)
    for requests, prompts, tokens, copies in ((1, 128, size, 8), (3, 128, 1024, 8), (4, 1, longest, 1)):
        asked = [Asking(queue) for _ in range(requests)]
        for each in asked:
            for number in range(prompts):
                token = current.set(each.context)
                queue.admit(tokens, 1, copies, str(number))
                current.reset(token)
        for each in asked:
            each.end()


def test_limits_of_classes(tmp_path: Path) -> None:
    short, long = parts(tmp_path)[0].queue.classes
    assert (short.name, short.requests.limit, short.tokens.limit) == ("short", QUEUED_REQUESTS, QUEUED_TOKENS)
    assert long.name == LADDER.names[1]
    one = parts(tmp_path, max_queued_requests={None: 5, "long": 2}, max_queued_tokens={"short": 7})[0].queue.classes
    assert [(each.requests.limit, each.tokens.limit) for each in one] == [(5, 7), (2, QUEUED_TOKENS)]
