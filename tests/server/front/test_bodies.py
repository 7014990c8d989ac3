"""Bodies: no larger than allowed and never standing still, however they come."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from fastapi import Request
from fastapi.responses import StreamingResponse
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.server.front import body as body_module
from ropeswitch.server.front.bodies import request as request_module
from ropeswitch.server.front.bodies.request import read_long_bodies
from ropeswitch.server.front.body import declared_length
from tests.server.front.parts import app_behind, ask, bearer, client_of, error_of, leaves_turns, parts, run_raw

LIMIT = 10
HALF = {"type": "http.request", "body": b"abc", "more_body": True}


def parts_of(chunks: Sequence[bytes]) -> list[dict[str, Any]]:
    last = len(chunks) - 1
    return [{"type": "http.request", "body": chunk, "more_body": i < last} for i, chunk in enumerate(chunks)]


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=8))
def test_chunked_bodies_are_counted(chunks: list[bytes]) -> None:
    app = app_behind(parts(max_body_bytes=LIMIT))
    sent = run_raw(app, parts_of(chunks), [(b"transfer-encoding", b"chunked")])
    total = sum(map(len, chunks))
    assert sent[0]["status"] == (200 if total <= LIMIT else 413)
    assert sent[1]["body"] == str(total).encode() if total <= LIMIT else b"request_too_large" in sent[1]["body"]
    # An HTTP response has one start, and one last part of its body.
    assert [message["type"] for message in sent].count("http.response.start") == 1
    assert [message.get("more_body", False) for message in sent[1:]].count(False) == 1


def test_a_declared_length_above_the_limit_is_refused() -> None:
    # The second could never be held.
    for limits in ({"max_body_bytes": LIMIT}, {"max_body_bytes": 3 * LIMIT, "max_held_body_bytes": 2 * LIMIT}):
        app = app_behind(parts(**limits))
        assert ask(app, "POST", "/v1/length", content=b"x" * LIMIT).json() == LIMIT
        answer = ask(app, "POST", "/v1/length", content=b"x" * (LIMIT + 1))
        assert answer.status_code == 413 and error_of(answer)["code"] == "request_too_large"


def test_a_clients_bodies_hold_no_more_than_their_share_until_their_answers_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the limit at most, so another client's body finds room; a short one always does."""
    monkeypatch.setattr(request_module, "LONG", 1000)
    front = parts(keys=["key", "other"], max_held_body_bytes=16000)
    app, streamed = app_behind(front), asyncio.Event()

    @app.post("/v1/stream")
    async def stream(request: Request) -> StreamingResponse:
        await request.body()

        async def answer() -> AsyncIterator[str]:
            yield "a"
            await streamed.wait()

        return StreamingResponse(answer())

    read_long_bodies(app)

    async def run() -> None:
        async with client_of(app) as client:

            async def post(size: int, key: str = "key", path: str = "/v1/length") -> httpx.Response:
                return await client.post(path, content=b"a" * size, headers=bearer(key))

            refused = await post(8001)
            assert refused.status_code == 413 and "8000 bytes" in error_of(refused)["message"]
            streaming = asyncio.create_task(post(7000, path="/v1/stream"))
            while not front.held_bodies.held:
                await asyncio.sleep(0)
            statuses = [(await post(*each)).status_code for each in ((1100,), (900,), (4000, "other"))]
            assert statuses == [503, 200, 200]
            streamed.set()
            assert (await streaming).status_code == 200
            assert not front.held_bodies.held

    asyncio.run(run())


def test_a_clients_burst_leaves_every_turn_of_the_loop_to_others() -> None:
    app, begun = app_behind(parts(keys=["a", "b"])), []

    @app.post("/v1/begin")
    async def begin(request: Request) -> None:
        begun.append(request.headers["authorization"][-1])

    async def run() -> None:
        async with client_of(app) as client:
            await leaves_turns(lambda key: client.post("/v1/begin", headers=bearer(key)), begun)

    asyncio.run(run())


def test_a_refused_request_without_a_body_keeps_its_connection() -> None:
    start, *rest = run_raw(app_behind(parts(keys=["key"])), [], [(b"content-length", b"0")])
    assert start["status"] == 401 and (b"connection", b"close") not in start["headers"]
    assert [each["more_body"] for each in rest] == [False]


@pytest.mark.parametrize("received", [[], [HALF], [HALF, HALF]])
def test_a_body_that_stalls_or_whose_client_leaves(received: list[dict[str, Any]]) -> None:
    app = app_behind(parts(body_timeout=0.05))
    length = [(b"content-length", b"100")]
    started = time.monotonic()
    sent = run_raw(app, received, length)
    assert time.monotonic() - started < 2 and sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"] and b"request_timeout" in sent[1]["body"]
    assert not run_raw(app, [*received, {"type": "http.disconnect"}], length)


@pytest.mark.parametrize(
    ("sizes", "declared", "status"),
    [
        ([300] * 8, True, 200),
        ([1] * 8, True, 408),
        # What came fast earns no time for dripping the rest.
        ([1 << 20, *[1] * 8], True, 408),
        # The rate suits the length; an unknown one is taken for the largest.
        ([8000] * 8 + [60 << 20], True, 408),
        ([8000] * 8, False, 408),
        # A link of 1 Mbit/s is fast enough for any.
        ([12500] * 8, False, 200),
    ],
)
def test_a_body_arrives_at_the_rate_that_suits_its_length(sizes: list[int], declared: bool, status: int) -> None:
    """Parts come every 0.1 s, of which 0.2 s may be missing."""
    app = app_behind(parts(body_timeout=0.2, max_body_bytes=256 << 20))
    length = (b"content-length", str(sum(sizes)).encode()) if declared else (b"transfer-encoding", b"chunked")
    sent = run_raw(app, parts_of([b"x" * size for size in sizes]), [length], pause=0.1)
    assert sent[0]["status"] == status
    assert (b"too slowly" in sent[1]["body"]) == (status == 408)


@pytest.mark.parametrize(("name", "value", "come"), [("LINGER_SECONDS", 0.05, 0), ("LINGER_BYTES", 1000, 11)])
def test_a_refused_body_is_answered_unread_and_its_rest_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, name: str, value: float, come: int
) -> None:
    monkeypatch.setattr(body_module, name, value)
    app, received = app_behind(parts(max_body_bytes=LIMIT)), parts_of([b"x" * 100] * (come + 1))[:come]
    started = time.monotonic()
    sent = run_raw(app, received, [(b"content-length", b"11")])
    assert time.monotonic() - started < 2
    assert sent[0]["status"] == 413 and (b"connection", b"close") in sent[0]["headers"]
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert len(received) == (1 if name == "LINGER_BYTES" else 0)


@pytest.mark.parametrize("lengths", [["-1"], ["9" * 5000], ["1", "chunked"]])
def test_a_length_that_cannot_be_trusted_is_unknown(lengths: list[str]) -> None:
    names = (b"content-length", b"transfer-encoding")
    assert declared_length({"headers": list(zip(names, map(str.encode, lengths), strict=False))}) is None
