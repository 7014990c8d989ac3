"""Requests that never reach an engine are counted once, by outcome."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from ropeswitch.server.front import refusal
from ropeswitch.server.front.context import current
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.limits.shares import Shares
from ropeswitch.server.front.refusal import RefusedError
from ropeswitch.server.metrics.fates import PATHS
from ropeswitch.server.metrics.instruments import REASONS
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from tests.server.front.parts import parts, server_parts
from tests.server.length_metrics.ladders import DEFAULT, ladder, read, total

PATH = "/v1/completions"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def app(registry: CollectorRegistry, tmp_path: Path) -> Iterator[FastAPI]:
    app = FastAPI()
    metrics = LengthMetrics(ladder(*DEFAULT), "m", registry)
    app.state.ropeswitch = server_parts(parts(tmp_path)[0], length_metrics=metrics)
    app.add_middleware(Front)

    @app.post(PATH)
    @app.post("/tokenize")
    async def answer(request: Request, status: int = 200, entered: bool = False, limit: int = 0) -> str:
        context = current.get()
        assert context is not None
        if entered:
            context.entered.sequences.append(SimpleNamespace())
        if limit:
            raise context.refuse(RefusedError(refusal.prompt_too_long(limit, 100)), limit)
        if status == 600:
            raise RuntimeError("fault")
        if status != 200:
            raise HTTPException(status)
        return "answer"

    @app.post("/v1/chat/completions")
    async def leaves() -> None:
        raise ClientDisconnect

    # As start.py has it.
    refusal.listeners.append(metrics.count_rejection)
    yield app
    refusal.listeners.remove(metrics.count_rejection)


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app, raise_server_exceptions=False)


def outcomes(registry: CollectorRegistry) -> dict[str, float]:
    found = read(registry)
    names = ("rejected", "error", "disconnect")
    counts = {name: total(found, "ropeswitch_requests_total", outcome=name, engine="none") for name in names}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (400, "invalid"),
        (403, "invalid"),  # a route that is disabled
        (404, "invalid"),
        (422, "invalid"),
        (401, "authentication"),
        (429, "unavailable"),
        (503, "unavailable"),
    ],
)
def test_refused_requests(client: TestClient, registry: CollectorRegistry, status: int, reason: str) -> None:
    assert client.post(PATH, params={"status": status}).status_code == status
    assert outcomes(registry) == {"rejected": 1}
    found = read(registry)
    assert total(found, "ropeswitch_rejections_total", reason=reason, input_sequence_length="unknown") == 1


@pytest.mark.parametrize("status", [500, 502, 600])
def test_faults(client: TestClient, registry: CollectorRegistry, status: int) -> None:
    assert client.post(PATH, params={"status": status}).status_code >= 500
    assert outcomes(registry) == {"error": 1}


def test_what_is_not_counted(client: TestClient, registry: CollectorRegistry, app: FastAPI) -> None:
    client.post(PATH)
    client.post(PATH, params={"status": 400, "entered": True})
    client.post(PATH, params={"status": 600, "entered": True})
    client.post("/tokenize", params={"status": 400})
    client.post("/unknown")
    client.get(PATH)
    app.state.ropeswitch = replace(app.state.ropeswitch, length_metrics=None)
    client.post(PATH, params={"status": 400})
    assert read(registry) == {}


def test_a_limit_counts_its_refusals_once_with_their_length(client: TestClient, registry: CollectorRegistry) -> None:
    for length in (200, 300, 5000):
        assert client.post(PATH, params={"limit": length}).status_code == 400
    assert outcomes(registry) == {"rejected": 3}
    for band in ("1-256", "257-1024", "1025+"):
        name = "ropeswitch_rejections_total"
        assert total(read(registry), name, reason="prompt_tokens", input_sequence_length=band) == 1


def test_a_client_that_leaves_before_its_prompt_is_there(app: FastAPI, registry: CollectorRegistry) -> None:
    """Half a body, then no more."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/prefix/v1/chat/completions",
        "root_path": "/prefix",
        "headers": [],
        "query_string": b"",
        "app": app,
    }

    async def read_body(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()
        raise ClientDisconnect

    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    asyncio.run(Front(read_body)(scope, receive, send))
    assert outcomes(registry) == {"disconnect": 1}


def test_a_client_that_leaves_a_stream_before_its_prompt_is_taken(app: FastAPI, registry: CollectorRegistry) -> None:
    """And one whose answer was given to its end, after which the server says, too, that it left."""
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "app": app}

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    for whole in (True, False):

        async def stream(scope: Any, receive: Any, send: Any, whole: bool = whole) -> None:
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"", "more_body": not whole})
            await receive()

        asyncio.run(Front(stream)(scope, receive, send))
    assert outcomes(registry) == {"disconnect": 1}


@pytest.mark.parametrize(("status", "expected"), [(500, {"error": 1}), (400, {"rejected": 1})])
def test_a_stream_that_ends_with_an_error_before_its_prompt_is_taken(
    app: FastAPI, client: TestClient, registry: CollectorRegistry, status: int, expected: dict[str, float]
) -> None:
    @app.post("/v1/responses")
    async def stream() -> StreamingResponse:
        events = [b'data: {"error": {"message": "m", "code": %d}}\n\n' % status, b"data: [DONE]\n\n"]
        return StreamingResponse(iter(events), media_type="text/event-stream")

    assert client.post("/v1/responses").status_code == 200
    assert outcomes(registry) == expected


def test_a_middleware_that_holds_the_answer_back(tmp_path: Path, registry: CollectorRegistry) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def hold(scope: Any, receive: Any, send: Any) -> None:
        held: list[Any] = []

        async def keep(message: Any) -> None:
            held.append(message)

        await refuse(scope, receive, keep)
        for message in held:
            await send(message)

    app = FastAPI()
    metrics = LengthMetrics(ladder(*DEFAULT), "m", registry)
    app.state.ropeswitch = server_parts(parts(tmp_path)[0], length_metrics=metrics)
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "app": app}

    async def nothing(message: Any = None) -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(Front(hold)(scope, nothing, nothing))
    assert outcomes(registry) == {"rejected": 1}


def test_every_reason_of_the_front_is_known() -> None:
    shares = Shares("--flag", 1)
    made = [refusal.NO_KEY, refusal.WRONG_KEY, refusal.body_too_large(1), refusal.body_slow(1, 1)]
    made += [refusal.bodies_too_many(shares), refusal.too_many_at_once("tokens", 1, b"", shares)]
    made += [refusal.head_late(1), refusal.head_too_large(1), refusal.too_many_headers(1)]
    made += [
        refusal.prompt_too_long(2, 1),
        *(refusal.queue_full("a", unit, 1, shares) for unit in ("requests", "tokens")),
    ]
    assert {each.reason for each in made} == {*REASONS} - {"invalid", "unavailable"}


def test_reasons_are_few(app: FastAPI) -> None:
    with pytest.raises(ValueError, match="'because' must be one of prompt_tokens"):
        app.state.ropeswitch.length_metrics.count_rejection("because")
    assert len(set(REASONS)) == len(REASONS) == 13


def test_paths_are_paths() -> None:
    assert all(path.startswith("/") and not path.endswith("/") for path in PATHS)
