"""Requests that never reach an engine are counted once, by outcome."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from ropeswitch.server.front import refusal
from ropeswitch.server.front.context import current
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.refusal import RefusedError
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from tests.server.front.parts import parts, server_parts
from tests.server.metrics.ladders import DEFAULT, ladder, read, total

PATH = "/v1/completions"


@pytest.fixture
def app() -> Iterator[FastAPI]:
    app = FastAPI()
    app.state.registry = CollectorRegistry()
    metrics = LengthMetrics(ladder(*DEFAULT), "m", app.state.registry)
    app.state.ropeswitch = server_parts(parts(), length_metrics=metrics)
    app.add_middleware(Front)

    @app.post(PATH)
    @app.post("/tokenize")
    async def answer(
        request: Request, status: int = 200, entered: bool = False, limit: int = 0, stream: int = 0
    ) -> Response:
        context = current.get()
        assert context is not None
        if entered:
            context.entered.sequences.append(SimpleNamespace())
        if limit:
            raise context.refuse(
                RefusedError(refusal.Refusal("prompt_tokens", 400, "context_length_exceeded", "too long")), limit
            )
        if status == 600:
            raise RuntimeError("fault")
        if status != 200:
            raise HTTPException(status)
        events = [b'data: {"error": {"message": "m", "code": %d}}\n\n' % stream] if stream else []
        return StreamingResponse(iter([*events, b"data: [DONE]\n\n"]), media_type="text/event-stream")

    # As start.py has it.
    refusal.listeners.append(metrics.count_rejection)
    yield app
    refusal.listeners.remove(metrics.count_rejection)


def outcomes(app: FastAPI) -> dict[str, float]:
    found = read(app.state.registry)
    names = ("rejected", "error", "disconnect")
    counts = {name: total(found, "ropeswitch_requests_total", outcome=name, engine="none") for name in names}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("asked", "outcome", "reason", "band"),
    [
        ({}, None, None, ""),
        ({"status": 403}, "rejected", "invalid", "unknown"),  # a route that is disabled
        ({"status": 401}, "rejected", "authentication", "unknown"),
        ({"status": 429}, "rejected", "unavailable", "unknown"),
        ({"status": 503}, "rejected", "unavailable", "unknown"),
        ({"stream": 400}, "rejected", "invalid", "unknown"),
        ({"status": 500}, "error", None, ""),
        ({"status": 600}, "error", None, ""),
        ({"stream": 500}, "error", None, ""),
        # A limit counts its refusals itself, with their length.
        ({"limit": 200}, "rejected", "prompt_tokens", "1-256"),
        ({"limit": 5000}, "rejected", "prompt_tokens", "1025+"),
        # An engine counts what has entered it.
        ({"status": 400, "entered": True}, None, None, ""),
        ({"status": 600, "entered": True}, None, None, ""),
    ],
)
def test_requests_that_never_reach_an_engine_are_counted_once(
    app: FastAPI, asked: dict[str, int], outcome: str | None, reason: str | None, band: str
) -> None:
    TestClient(app, raise_server_exceptions=False).post(PATH, params=asked)
    assert outcomes(app) == ({outcome: 1} if outcome else {})
    found, name = read(app.state.registry), "ropeswitch_rejections_total"
    here = total(found, name, reason=reason or "", input_sequence_length=band)
    assert here == total(found, name) == (reason is not None)


def test_other_routes_and_unmeasured_servers_count_nothing(app: FastAPI) -> None:
    client = TestClient(app)
    client.post("/tokenize", params={"status": 400})
    client.post("/unknown")
    client.get(PATH)
    app.state.ropeswitch = replace(app.state.ropeswitch, length_metrics=None)
    client.post(PATH, params={"status": 400})
    assert read(app.state.registry) == {}


START, END = {"type": "http.response.start", "status": 200}, {"type": "http.response.body", "body": b""}


@pytest.mark.parametrize(
    ("sent", "error", "expected"),
    [
        ([], ClientDisconnect, {"disconnect": 1}),  # in the middle of its body
        ([START], None, {"disconnect": 1}),
        ([START, END], None, {}),  # after its answer, the server says, too, that the client left
    ],
)
def test_a_client_that_leaves_before_its_prompt_is_there(
    app: FastAPI, sent: list[Any], error: Any, expected: dict[str, int]
) -> None:
    async def inside(_: Any, receive: Any, send: Any) -> None:
        for message in sent:
            await send(message)
        await receive()
        if error is not None:
            raise error

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "app": app}
    receive, send = AsyncMock(return_value={"type": "http.disconnect"}), AsyncMock()
    asyncio.run(Front(inside)(scope, receive, send))
    assert outcomes(app) == expected
