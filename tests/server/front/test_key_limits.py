"""Sequences and prompt tokens in flight of each client, as clients see their limits."""

import asyncio
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocket

from ropeswitch.server.front.limits.keys import digest
from tests.server.front.parts import app_behind, ask, bearer, client_of, error_of, parts


def test_probes_and_metrics_are_not_counted(tmp_path: Path) -> None:
    state = parts(tmp_path, max_sequences_per_key=1)[0]
    app = app_behind(state)
    state.queue.sequences.add(digest(b"127.0.0.1"), 1)
    for _ in range(3):
        assert ask(app, "GET", "/health").status_code == 404
        assert ask(app, "POST", "/health").status_code == 404
        assert ask(app, "GET", "/metrics").status_code == 404
    assert ask(app, "POST", "/v1/length").status_code == 429


def test_requests_at_once(tmp_path: Path) -> None:
    state = parts(tmp_path, keys=["a", "b"], max_sequences_per_key=2)[0]
    app = app_behind(state)

    async def run() -> None:
        let_go = asyncio.Event()

        @app.post("/v1/slow")
        async def slow() -> None:
            await let_go.wait()

        async with client_of(app) as client:
            running = [asyncio.create_task(client.post("/v1/slow", headers=bearer("a"))) for _ in range(2)]
            while state.queue.sequences.held[state.keys.match(b"a") or b""] < 2:
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
        assert state.queue.sequences.held[state.keys.match(b"a") or b""] == 0

    asyncio.run(run())


def test_a_websocket_counts_while_it_is_open(tmp_path: Path) -> None:
    state = parts(tmp_path, max_sequences_per_key=1)[0]
    app = app_behind(state)

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        await socket.close()

    client = TestClient(app)
    with client.websocket_connect("/v1/realtime") as socket:
        assert state.queue.sequences.total == 1
        with pytest.raises(Exception), client.websocket_connect("/v1/realtime"):  # noqa: B017 - of the test client's own
            pass
        socket.send_text("done")
    assert state.queue.sequences.total == 0
