"""How much one key may ask for: the table against a plain model of it, in two processes' views of it at once."""

import asyncio
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.server.front import key_limits, shared_counts
from ropeswitch.server.front.key_limits import KeyLimits
from ropeswitch.server.front.refusal import Refusal
from ropeswitch.server.front.shared_counts import SharedCounts
from tests.server.front.parts import Clock, app_behind, ask, bearer, client_of, error_of, parts


def fresh(factory: pytest.TempPathFactory) -> str:
    return SharedCounts.create(factory.mktemp("front") / "counts")


@given(
    limit=st.integers(1, 20),
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30)), max_size=60),
)
def test_the_rate(tmp_path_factory: pytest.TempPathFactory, limit: int, steps: list[tuple[str, float]]) -> None:
    """In any t seconds a key makes at most ``limit * (1 + t / 60)`` requests, and a retry after ``retry_after`` succeeds."""
    clock, path = Clock(), fresh(tmp_path_factory)
    views = [KeyLimits(SharedCounts(path), None, limit, clock) for _ in range(2)]
    made: dict[str, list[float]] = defaultdict(list)
    for step, (name, seconds) in enumerate(steps):
        clock.now += seconds
        key = name.encode() * 8
        refusal = views[step % 2].take(key)
        if refusal is None:
            made[name].append(clock.now)
        else:
            assert refusal.status == 429 and refusal.retry_after is not None
            assert 1 <= refusal.retry_after <= math.ceil(60 / limit)
            clock.now += refusal.retry_after + 1e-6
            assert views[(step + 1) % 2].take(key) is None
            made[name].append(clock.now)
    for times in made.values():
        for i, first in enumerate(times):
            for j, last in enumerate(times[i:], start=1):
                assert j <= limit * (1 + (last - first) / 60) + 1e-3


@given(
    limit=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=80),
)
def test_the_requests_in_hand(tmp_path_factory: pytest.TempPathFactory, limit: int, steps: list[Any]) -> None:
    path = fresh(tmp_path_factory)
    views = [KeyLimits(SharedCounts(path), limit, None) for _ in range(2)]
    model: dict[bytes, int] = defaultdict(int)
    for step, (name, take) in enumerate(steps):
        key, view = name.encode() * 8, views[step % 2]
        if take:
            refusal = view.take(key)
            assert (refusal is None) == (model[key] < limit)
            assert refusal is None or (refusal.status, refusal.retry_after) == (429, 1)
            model[key] += refusal is None
        elif model[key]:
            view.give_back(key)
            model[key] -= 1
        assert all(views[0].in_flight(each) == count for each, count in model.items())


def test_keys_that_fall_on_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight keys in a table of four places: a place is only taken from a key with nothing in hand and its whole rate."""
    monkeypatch.setattr(key_limits, "KEYS", 4)
    clock = Clock()
    limits = KeyLimits(SharedCounts(SharedCounts.create(tmp_path / "counts")), 2, 60, clock)
    keys = [(4 * number + 1).to_bytes(8, "little") for number in range(8)]
    for key in keys[:4]:
        assert limits.take(key) is None
    with pytest.raises(RuntimeError, match="more than 4 API keys"):
        limits.take(keys[4])
    limits.give_back(keys[1])
    with pytest.raises(RuntimeError, match="more than 4 API keys"):
        limits.take(keys[4])  # its rate is not whole again
    clock.now += 1
    assert limits.take(keys[4]) is None
    assert [limits.in_flight(keys[number]) for number in (0, 2, 3, 4)] == [1, 1, 1, 1]
    limits.give_back(keys[0])
    clock.now += 1
    assert limits.take(keys[4]) is None
    assert limits.in_flight(keys[4]) == 2


def test_a_key_with_a_number_of_zero(tmp_path: Path) -> None:
    limits = KeyLimits(SharedCounts(SharedCounts.create(tmp_path / "counts")), 1, None)
    assert limits.take(bytes(32)) is None and isinstance(limits.take(bytes(32)), Refusal)


def test_there_is_room_for_every_key() -> None:
    from ropeswitch.server.front.keys import MOST_KEYS

    assert shared_counts.KEYS >= 2 * MOST_KEYS


def test_requests_of_one_key_leave_those_of_another(tmp_path: Path) -> None:
    state = parts(tmp_path, keys=["a", "b"], requests_per_minute_per_key=2)[0]
    app = app_behind(state)
    for key in ("a", "b"):
        for _ in range(2):
            assert ask(app, "POST", "/v1/length", headers=bearer(key)).status_code == 200
        answer = ask(app, "POST", "/v1/length", headers=bearer(key), content=b"x" * 100)
        assert answer.status_code == 429 and answer.headers["retry-after"] == "30"
        error = error_of(answer)
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    # What brings no work is not counted, and neither is what has no key.
    assert ask(app, "GET", "/v1/length", headers=bearer("a")).status_code == 405
    assert ask(app, "POST", "/v1/length").status_code == 401


def test_probes_and_metrics_are_never_refused(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path, requests_per_minute_per_key=1)[0])
    for _ in range(3):
        assert ask(app, "GET", "/health").status_code == 404
        assert ask(app, "POST", "/health").status_code == 404
        assert ask(app, "GET", "/metrics").status_code == 404
    assert ask(app, "POST", "/v1/length").status_code == 200
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
            while state.key_limits.in_flight(state.keys.match(b"a") or b"") < 2:
                await asyncio.sleep(0.001)
            third = await client.post("/v1/slow", headers=bearer("a"))
            assert third.status_code == 429 and third.headers["retry-after"] == "1"
            assert (await client.post("/v1/length", headers=bearer("b"))).status_code == 200
            let_go.set()
            assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
            assert (await client.post("/v1/slow", headers=bearer("a"))).status_code == 200
        assert state.key_limits.in_flight(state.keys.match(b"a") or b"") == 0

    asyncio.run(run())


def test_a_websocket_counts_while_it_is_open(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient
    from starlette.websockets import WebSocket

    from ropeswitch.server.front.key_limits import EVERYONE

    state = parts(tmp_path, max_concurrent_per_key=1)[0]
    app = app_behind(state)

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        await socket.close()

    client = TestClient(app)
    with client.websocket_connect("/v1/realtime") as socket:
        assert state.key_limits.in_flight(EVERYONE) == 1
        with pytest.raises(Exception), client.websocket_connect("/v1/realtime"):  # noqa: B017 - of the test client's own
            pass
        socket.send_text("done")
    assert state.key_limits.in_flight(EVERYONE) == 0
