"""Which requests need a key, and where the keys come from."""

import logging
import os
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.front.limits.keys import LOOK_SECONDS, MOST_KEYS, KeyRing, bearer, digest, read_keys
from ropeswitch.server.front.state import is_open, route_path
from tests.server.front.parts import Clock, app_behind, ask, error_of, parts
from tests.server.front.parts import bearer as header

KEYS = ["first-key", "second-key"]


GUARDED = (
    "/v1/models /tokenize /invocations /ping /docs /openapi.json /version /load /nothing "
    "/healthy /uix /v1/health /HEALTH /health.."
)


@pytest.mark.parametrize("path", GUARDED.split())
def test_every_route_needs_a_key(tmp_path: Path, path: str) -> None:
    app = app_behind(parts(tmp_path, keys=KEYS)[0])
    for method in ("GET", "POST", "HEAD", "DELETE"):
        for wrong in ({}, header("other"), header(""), {"authorization": "Basic first-key"}, {"api-key": "first-key"}):
            assert ask(app, method, path, headers=wrong).status_code == 401
        for key in KEYS:
            assert ask(app, method, path, headers=header(key)).status_code in (200, 404, 405)


def test_anthropics_clients_send_their_key_in_a_header_of_its_own(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path, keys=KEYS)[0])
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert (
            ask(app, "POST", path, headers={"x-api-key": "second-key"}).status_code == 404
        )  # the tiny app has neither
        for wrong in ("", "other"):
            assert ask(app, "POST", path, headers={"x-api-key": wrong}).status_code == 401
        both = {"x-api-key": "second-key"} | header("other")
        assert ask(app, "POST", path, headers=both).status_code == 401
    assert ask(app, "POST", "/v1/length", headers={"x-api-key": "second-key"}).status_code == 401


@pytest.mark.parametrize(
    "path", ["/", "/health", "/health/live", "/health/ready", "/ui", "/ui/app.js", "/metrics", "/metrics/", "/metricsx"]
)
def test_open_routes(tmp_path: Path, path: str) -> None:
    app = app_behind(parts(tmp_path, keys=KEYS)[0])
    assert ask(app, "GET", path).status_code == 404  # the tiny app has none of them
    assert ask(app, "GET", path, headers=header("wrong")).status_code == 404


def test_a_browser_may_ask_what_it_may_send(tmp_path: Path) -> None:
    """Other OPTIONS requests need a key: a mounted app may answer them as it answers GET, as that of the metrics does."""
    app = app_behind(parts(tmp_path, keys=KEYS, metrics_key="scraper")[0])
    app.mount("/mounted", PlainTextResponse("secret"))
    app.mount("/metrics", PlainTextResponse("secret"))
    origin, method = {"origin": "http://page"}, {"access-control-request-method": "POST"}
    for path in ("/v1/length", "/mounted/", "/metrics/"):
        for headers in ({}, origin, method):
            assert ask(app, "OPTIONS", path, headers=headers).status_code == 401
    assert ask(app, "OPTIONS", "/metrics/", headers=origin | method).status_code == 401
    app.middleware_stack = None  # built at the first request
    # As vLLM adds it, between the front and the routes.
    app.user_middleware.append(Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"]))
    for path in ("/v1/length", "/mounted/"):
        found = ask(app, "OPTIONS", path, headers=origin | method)
        assert found.status_code == 200 and "secret" not in found.text


def test_without_keys_nothing_needs_one(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path)[0])
    assert ask(app, "POST", "/v1/length", content=b"abc").json() == 3
    assert ask(app, "POST", "/v1/length", content=b"abc", headers=header("any")).json() == 3


def test_the_metrics_key_opens_the_metrics_alone(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path, keys=KEYS, metrics_key="scraper")[0])
    for path in ("/metrics", "/metrics/", "/metricsx"):
        assert ask(app, "GET", path).status_code == 401
        assert ask(app, "OPTIONS", path).status_code == 401
        assert ask(app, "GET", path, headers=header("other")).status_code == 401
        assert ask(app, "GET", path, headers=header("scraper")).status_code == 404
        assert ask(app, "GET", path, headers=header("first-key")).status_code == 404
    assert ask(app, "GET", "/v1/models", headers=header("scraper")).status_code == 401
    alone = app_behind(parts(tmp_path, metrics_key="scraper")[0])
    assert ask(alone, "GET", "/metrics").status_code == 401
    assert ask(alone, "GET", "/v1/models").status_code == 404


def test_a_file_of_metrics_keys_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics-keys"
    path.write_text("scraper\n")
    state = parts(tmp_path, keys=KEYS, metrics_key_file=str(path))[0]
    app = app_behind(state)
    assert ask(app, "GET", "/metrics").status_code == 401
    assert ask(app, "GET", "/metrics", headers=header("scraper")).status_code == 404
    assert ask(app, "GET", "/v1/models", headers=header("scraper")).status_code == 401
    replaced = tmp_path / "new"
    replaced.write_text("next-scraper\n")
    replaced.replace(path)
    deadline = time.monotonic() + 10
    while ask(app, "GET", "/metrics", headers=header("next-scraper")).status_code != 404:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert ask(app, "GET", "/metrics", headers=header("scraper")).status_code == 401
    with pytest.raises(UsageError, match=r"^--metrics-key-file: "):
        parts(tmp_path, metrics_key_file=str(tmp_path / "none"))


def test_the_answer_without_a_key(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path, keys=KEYS)[0])
    for headers in ({}, header("sent-but-wrong")):
        answer = ask(app, "POST", "/v1/length", content=b"x" * 10, headers=headers)
        error = error_of(answer)
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "sent-but-wrong" not in answer.text


def test_the_root_path_is_taken_off_as_the_router_does(tmp_path: Path) -> None:
    assert route_path({"path": "/api/health", "root_path": "/api"}) == "/health"
    assert route_path({"path": "/apihealth", "root_path": "/api"}) == "/apihealth"
    assert route_path({"path": "/health/v1/models", "root_path": "/health"}) == "/v1/models"
    assert not is_open(route_path({"path": "/health/v1/models", "root_path": "/health"}))
    app = app_behind(parts(tmp_path, keys=KEYS)[0])
    app.root_path = "/health"
    assert ask(app, "POST", "/health/v1/length", content=b"abc").status_code == 401


def test_the_metrics_have_no_websocket(tmp_path: Path) -> None:
    """vLLM's mount would take one, and raise."""
    app = app_behind(parts(tmp_path)[0])

    @app.websocket("/metrics")
    async def metrics(socket: WebSocket) -> None:
        await socket.accept()

    for path in ("/metrics", "/metricsx"):
        with pytest.raises(Exception) as refused, TestClient(app).websocket_connect(path):
            pass
        assert getattr(refused.value, "status_code", None) == 404


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("x-request-id", "i" * 257, "x-request-id"),
        ("X-Vllm-Priority", "99999999999999999999", "-2**63"),
        ("X-Vllm-Priority", "-9223372036854775809", "-2**63"),
    ],
)
def test_headers_that_the_engine_cannot_take(tmp_path: Path, name: str, value: str, says: str) -> None:
    app = app_behind(parts(tmp_path)[0])

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()

    with pytest.raises(Exception) as refused, TestClient(app).websocket_connect("/v1/realtime", headers={name: value}):
        pass
    assert getattr(refused.value, "status_code", None) == 400
    answer = ask(app, "POST", "/v1/length", content=b"abc", headers={name: value})
    assert answer.status_code == 400 and says in error_of(answer)["message"]
    assert error_of(answer)["param"] == name.lower()
    for given in ("high", "-3", value[:18]):
        assert ask(app, "POST", "/v1/length", content=b"abc", headers={name: given}).status_code == 200


def test_too_many_headers(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path, max_headers=20)[0])

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()

    # The clients send some of their own.
    few, many = ({f"x-{number}": "1" for number in range(count)} for count in (10, 21))
    with TestClient(app).websocket_connect("/v1/realtime", headers=few):
        pass
    with pytest.raises(Exception) as refused, TestClient(app).websocket_connect("/v1/realtime", headers=many):
        pass
    assert getattr(refused.value, "status_code", None) == 431
    assert ask(app, "POST", "/v1/length", content=b"abc", headers=few).status_code == 200
    answer = ask(app, "POST", "/v1/length", content=b"abc", headers=many)
    assert answer.status_code == 431 and answer.headers["connection"] == "close"
    assert error_of(answer)["code"] == "request_too_large" and "20 headers" in error_of(answer)["message"]


def test_websockets_need_a_key(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path, keys=KEYS)[0])

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("open")
        await socket.close()

    client = TestClient(app)
    with client.websocket_connect("/v1/realtime", headers=header("first-key")) as socket:
        assert socket.receive_text() == "open"
    with pytest.raises(Exception) as refused, client.websocket_connect("/v1/realtime"):
        pass
    status = getattr(refused.value, "status_code", None)
    assert status == 401 or isinstance(refused.value, WebSocketDisconnect)


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (b"Bearer k", b"k"),
        (b"bearer  k ", b"k"),
        (b"BEARER k", b"k"),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"k", None),
        (b"Basic k", None),
        (b"", None),
    ],
)
def test_bearer_tokens(value: bytes, token: bytes | None) -> None:
    assert bearer(value) == token


def test_files_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n first \n\nsecond\r\n  # theirs\nthird")
    assert read_keys(str(path)) == {digest(b"first"): 2, digest(b"second"): 4, digest(b"third"): 6}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "has 0 keys"),
        (b"# nothing\n\n", "has 0 keys"),
        (b"good\nsec ret\n", "line 2"),
        ("gööd\n".encode(), "line 1"),
        (b"\xff\xfe", "text file"),
        (b"k\n" * (MOST_KEYS + 1), f"has {MOST_KEYS + 1} keys"),
        (b"#" * 2**21, "bytes"),
    ],
)
def test_bad_files_of_keys(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=expected) as refused:
        read_keys(str(path))
    assert str(refused.value).startswith(f"--api-key-file: {str(path)!r}")
    assert "sec ret" not in str(refused.value) and "gööd" not in str(refused.value)


def test_a_missing_file_of_keys(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_keys(str(path))


def secret(folder: Path, name: str, content: str) -> Path:
    """A secret as Kubernetes mounts it: a link to a link to a folder, which is replaced at once."""
    (folder / name).mkdir()
    (folder / name / "keys").write_text(content)
    os.symlink(name, folder / "new")
    os.replace(folder / "new", folder / "data")
    link = folder / "keys"
    if not link.is_symlink():
        os.symlink("data/keys", link)
    return link


def test_a_mounted_secret_is_read_again(tmp_path: Path) -> None:
    clock = Clock()
    path = secret(tmp_path, "one", "old\n")
    ring = KeyRing([digest(b"fixed")], str(path), clock=clock)
    assert ring.match(b"old") and ring.match(b"fixed") and not ring.match(b"new")
    secret(tmp_path, "two", "new\n")
    assert ring.match(b"old"), "not before a second has passed"
    clock.now += LOOK_SECONDS
    assert ring.match(b"new") and ring.match(b"fixed") and not ring.match(b"old")


def test_a_bad_file_keeps_the_old_keys_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    path = tmp_path / "keys"
    path.write_text("old-secret\n")
    ring = KeyRing([], str(path), clock=clock)
    for change in ("", None, "two words\n"):
        caplog.clear()
        if change is None:
            path.unlink()
        else:
            path.write_text(change)
        for _ in range(3):
            clock.now += LOOK_SECONDS
            assert ring.match(b"old-secret") and not ring.match(b"")
        messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(messages) == 1 and messages[0].endswith("stays in force") and str(path) in messages[0]
        assert "old-secret" not in messages[0] and "two words" not in messages[0]
    path.write_text("new\n")
    clock.now += LOOK_SECONDS
    assert ring.match(b"new") and not ring.match(b"old-secret")


def test_a_ring_with_a_file_never_opens_the_server(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n")
    ring = KeyRing([], str(path), clock=Clock())
    path.write_text("")
    assert ring.needed
