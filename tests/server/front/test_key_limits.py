"""Requests in flight of each key: the counter against a plain model of it, and what clients see."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.websockets import WebSocket

from ropeswitch.server.front.limits.keys import digest
from ropeswitch.server.front.refusal import RefusedError
from ropeswitch.server.front.state import KeyLimits
from tests.server.front.parts import app_behind, ask, bearer, client_of, error_of, parts


@given(
    limit=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=80),
)
def test_the_requests_in_flight(limit: int, steps: list[Any]) -> None:
    limits = KeyLimits(limit)
    model: dict[bytes, int] = defaultdict(int)
    for name, take in steps:
        key = name.encode() * 8
        if take:
            if model[key] < limit:
                limits.begin(key)
                model[key] += 1
            else:
                with pytest.raises(RefusedError) as raised:
                    limits.begin(key)
                assert (raised.value.refusal.status, raised.value.refusal.retry_after) == (429, 1)
        elif model[key]:
            limits.end(key)
            model[key] -= 1
        assert all(limits.in_flight[each] == count for each, count in model.items())


def test_probes_and_metrics_are_not_counted(tmp_path: Path) -> None:
    state = parts(tmp_path, max_concurrent_per_key=1)[0]
    app = app_behind(state)
    state.key_limits.begin(digest(b"127.0.0.1"))
    for _ in range(3):
        assert ask(app, "GET", "/health").status_code == 404
        assert ask(app, "POST", "/health").status_code == 404
        assert ask(app, "GET", "/metrics").status_code == 404
    assert ask(app, "POST", "/v1/length").status_code == 429


def test_requests_at_once(tmp_path: Path) -> None:
    state = parts(tmp_path, keys=["a", "b"], max_concurrent_per_key=2)[0]
    app = app_behind(state)

    async def run() -> None:
        let_go = asyncio.Event()

        @app.post("/v1/slow")
        async def slow() -> None:
            await let_go.wait()

        async with client_of(app) as client:
            running = [asyncio.create_task(client.post("/v1/slow", headers=bearer("a"))) for _ in range(2)]
            while state.key_limits.in_flight[state.keys.match(b"a") or b""] < 2:
                await asyncio.sleep(0.001)
            third = await client.post("/v1/slow", headers=bearer("a"))
            assert third.status_code == 429 and third.headers["retry-after"] == "1"
            error = error_of(third)
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            # A request that starts no work is not counted, and neither is one without a key.
            assert (await client.get("/v1/length", headers=bearer("a"))).status_code == 405
            assert (await client.post("/v1/length")).status_code == 401
            assert (await client.post("/v1/length", headers=bearer("b"))).status_code == 200
            let_go.set()
            assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
            assert (await client.post("/v1/slow", headers=bearer("a"))).status_code == 200
        assert state.key_limits.in_flight[state.keys.match(b"a") or b""] == 0

    asyncio.run(run())


def test_a_websocket_counts_while_it_is_open(tmp_path: Path) -> None:
    state = parts(tmp_path, max_concurrent_per_key=1)[0]
    app = app_behind(state)

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        await socket.close()

    client = TestClient(app)
    with client.websocket_connect("/v1/realtime") as socket:
        assert sum(state.key_limits.in_flight.values()) == 1
        with pytest.raises(Exception), client.websocket_connect("/v1/realtime"):  # noqa: B017 - of the test client's own
            pass
        socket.send_text("done")
    assert sum(state.key_limits.in_flight.values()) == 0
