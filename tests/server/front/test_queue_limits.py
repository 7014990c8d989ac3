"""What may wait for its first token: the counts against a plain model of them, and that nothing is left of them."""

import asyncio
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from ropeswitch.server.front.context import Ticket
from ropeswitch.server.front.flags import QUEUED_REQUESTS, QUEUED_TOKENS
from ropeswitch.server.front.limits.queue_limits import Admission
from ropeswitch.server.front.refusal import Refusal, listeners
from ropeswitch.server.front.state import FrontState
from tests.server.front.parts import LADDER, Engine, HttpError, app_behind, ask, client_of, error_of, parts


def class_of(tokens: int) -> int:
    """The length class of a prompt, as ``engine_client.py`` decides it."""
    return LADDER.index_for(min(tokens, LADDER.max_length))


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
    state, admission = parts(tmp_path, engine, max_queued_requests={None: 2})
    app = app_with_prompts(state, admission, engine)

    async def run() -> None:
        async with client_of(app) as client:
            waiting = {"lengths": [12], "prefill": 60}
            running = [asyncio.create_task(client.post("/v1/prompts", json=waiting | {"id": i})) for i in range(2)]
            while state.queue.waiting(1) != (2, 24):
                await asyncio.sleep(0.001)
            refused = await client.post("/v1/prompts", json={"id": "long", "lengths": [9]})
            assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) <= 60
            error = error_of(refused)
            assert (error["type"], error["code"]) == ("server_error", "queue_full")
            assert "'long'" in error["message"] and "2 requests" in error["message"]
            for _ in range(3):
                assert (await client.post("/v1/prompts", json={"id": "short", "lengths": [8]})).status_code == 200
            mixed = await client.post("/v1/prompts", json={"id": "mixed", "lengths": [8, 9]})
            assert mixed.status_code == 503 and state.queue.waiting(0) == (0, 0)
            # What is computed waits no more, though it is still being answered.
            engine.requests["0-0"] = False
            assert (await client.post("/v1/prompts", json={"id": "next", "lengths": [9]})).status_code == 200
            faulty = await client.post("/v1/prompts", json={"id": "faulty", "lengths": [8], "fault": True})
            assert faulty.status_code == 500
            assert state.queue.waiting(0) == (0, 0) and sum(state.key_limits.in_flight.values()) == 2
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        assert state.queue.waiting(1) == (0, 0) and sum(state.key_limits.in_flight.values()) == 0

    asyncio.run(run())


def test_tokens_and_answers_are_counted(tmp_path: Path) -> None:
    engine = Engine()
    queue = parts(tmp_path, engine, max_queued_tokens={"short": 20}, max_queued_requests={"short": 5})[0].queue
    first = queue.add(5, 0, 3, "a", [])
    assert isinstance(first, Ticket) and queue.waiting(0) == (3, 15)
    tokens = queue.add(6, 0, 1, "b", [])
    assert isinstance(tokens, Refusal) and tokens.reason == "queue_tokens" and "20 tokens" in tokens.message
    requests = queue.add(1, 0, 3, "c", [])
    assert isinstance(requests, Refusal) and requests.reason == "queue_requests" and "5 requests" in requests.message
    assert isinstance(queue.add(5, 0, 1, "d", []), Ticket) and queue.waiting(0) == (4, 20)


def test_a_request_that_is_alone_is_taken_whatever_its_size(tmp_path: Path) -> None:
    state, _ = parts(tmp_path, max_queued_tokens={None: 1}, max_queued_requests={None: 1})
    siblings: list[Ticket] = []
    for number in range(4):
        ticket = state.queue.add(8, 0, 2, str(number), siblings)
        assert isinstance(ticket, Ticket)
        siblings.append(ticket)
    assert isinstance(state.queue.add(1, 0, 1, "other", []), Refusal)
    state.queue.settle(siblings)
    assert state.queue.waiting(0) == (0, 0)


def test_the_first_in_the_queue_tells_when_to_come_back(tmp_path: Path) -> None:
    state, _ = parts(tmp_path, Engine(), max_queued_requests={None: 1})
    now = [0.0]
    state.queue._clock = lambda: now[0]
    state.queue.add(1, 0, 1, "a", [])
    for waited, expected in ((0.0, 1), (0.5, 1), (7.2, 8), (500.0, 60)):
        now[0] = waited
        refusal = state.queue.add(1, 0, 1, "b", [])
        assert isinstance(refusal, Refusal) and refusal.retry_after == expected


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 20), st.integers(1, 3), st.sampled_from("awdlse")), max_size=80
    )
)
def test_counts_are_those_of_what_waits(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int, str]]
) -> None:
    """Any order of what happens to requests: admitted, waiting, computed, gone, looked at and ended."""
    engine = Engine()
    queue = parts(
        tmp_path_factory.mktemp("front"), engine, max_queued_requests={None: 6}, max_queued_tokens={None: 40}
    )[0].queue
    held: dict[str, Ticket] = {}
    for number, tokens, copies, step in steps:
        name = str(number)
        if step == "a" and name not in held:
            ticket = queue.add(tokens, class_of(tokens), copies, name, [])
            if isinstance(ticket, Ticket):
                held[name] = ticket
        elif step in "wd" and name in held:
            engine.requests[name] = step == "w"
        elif step == "l":
            queue.look()
        elif step == "s" and name in held:
            queue.settle([held[name]])
        elif step == "e" and name in held:
            engine.requests.pop(name, None)
            queue.settle([held.pop(name)])
        for index in range(2):
            waiting = [ticket for ticket in held.values() if ticket.index == index and not ticket.released]
            assert queue.waiting(index) == (sum(t.requests for t in waiting), sum(t.tokens for t in waiting))
    for name in list(held):
        engine.requests.pop(name, None)
        queue.settle([held.pop(name)])
    assert [queue.waiting(index) for index in range(2)] == [(0, 0), (0, 0)]


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
    state, admission = parts(tmp_path, max_prompt_tokens=1)
    admission.admit(9, 1, 1, "warm-up")
    assert state.queue.waiting(1) == (0, 0)


def test_limits_by_default(tmp_path: Path) -> None:
    short, long = parts(tmp_path)[0].queue.classes
    assert (short.name, short.max_requests, short.max_tokens) == ("short", QUEUED_REQUESTS, QUEUED_TOKENS)
    assert long.name == LADDER.names[1]
    one = parts(tmp_path, max_queued_requests={None: 5, "long": 2}, max_queued_tokens={"short": 7})[0].queue.classes
    assert [(each.max_requests, each.max_tokens) for each in one] == [(5, 7), (2, QUEUED_TOKENS)]
