"""Which requests need a key, and where the keys come from."""

import logging
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocket

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.front.limits import keys
from ropeswitch.server.front.limits.keys import LOOK_SECONDS, MOST_KEYS, KeyRing, digest, read_keys
from tests.server.front.parts import Clock, app_behind, ask, parts
from tests.server.front.parts import bearer as header

KEYS = ["first-key", "second-key"]
GUARDED = "/v1/models /docs /openapi.json /load /nothing /healthy /uix /v1/health /HEALTH /health.. /v1/length".split()
OPEN = "/ /health /health/live /health/ready /ui /ui/app.js /metrics /metrics/ /metricsx".split()


WRONG = [{}, header("sent-but-wrong"), header(""), {"authorization": "Basic first-key"}, {"api-key": "first-key"}]


@pytest.mark.parametrize("path", GUARDED + OPEN)
def test_every_route_but_probes_page_and_metrics_needs_a_key(path: str) -> None:
    app = app_behind(parts(keys=KEYS))
    for method in ("GET", "POST", "HEAD", "DELETE"):
        for wrong in WRONG:
            answer = ask(app, method, path, headers=wrong)
            assert (answer.status_code == 401) == (path in GUARDED) and "sent-but-wrong" not in answer.text
            assert answer.status_code != 401 or answer.headers["www-authenticate"] == "Bearer"
        for right in (header(KEYS[0]), {"authorization": f"bEARER  {KEYS[1]} "}):
            assert ask(app, method, path, headers=right).status_code in (200, 404, 405)
    assert ask(app_behind(parts()), "POST", path).status_code != 401


def test_anthropics_clients_send_their_key_in_a_header_of_its_own() -> None:
    app = app_behind(parts(keys=KEYS))
    right, other = {"x-api-key": "second-key"}, {"x-api-key": "other"}
    for path, headers, status in (
        # The tiny app has neither route.
        ("/v1/messages", right, 404),
        ("/v1/messages/count_tokens", right, 404),
        ("/v1/messages", {"x-api-key": ""}, 401),
        ("/v1/messages", other, 401),
        ("/v1/messages", right | header("other"), 401),
        ("/v1/length", right, 401),
    ):
        answer = ask(app, "POST", path, headers=headers)
        assert answer.status_code == status and (answer.json().get("type") == "error") == ("messages" in path)


def test_a_browser_may_ask_what_it_may_send() -> None:
    """Other OPTIONS requests need a key: a mounted app may answer them as it answers GET, as that of the metrics does."""
    app = app_behind(parts(keys=KEYS, metrics_key="scraper"))
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


def test_the_metrics_keys_open_the_metrics_alone_and_follow_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_SECONDS", 0)
    path = tmp_path / "metrics-keys"
    path.write_text("from-file\n")
    state = parts(keys=KEYS, metrics_key="scraper", metrics_key_file=str(path))
    app = app_behind(state)

    def get(path: str, key: str, method: str = "GET") -> int:
        return ask(app, method, path, headers=header(key)).status_code

    for each in ("/metrics", "/metrics/", "/metricsx"):
        assert ask(app, "GET", each).status_code == ask(app, "OPTIONS", each).status_code == get(each, "other") == 401
        assert get(each, "scraper") == get(each, "from-file") == get(each, "first-key") == 404
    assert get("/v1/models", "scraper") == get("/v1/models", "from-file") == 401
    path.write_text("next\n")
    assert (get("/metrics", "next"), get("/metrics", "from-file"), get("/metrics", "scraper")) == (404, 401, 404)
    alone = app_behind(parts(metrics_key="scraper"))
    assert ask(alone, "GET", "/metrics").status_code == 401 and ask(alone, "GET", "/v1/models").status_code == 404


def test_the_root_path_is_taken_off_as_the_router_does() -> None:
    app = app_behind(parts(keys=KEYS))
    for root, path, status in (
        ("/api", "/api/health", 404),
        ("/api", "/apihealth", 401),
        ("/health", "/health/v1/length", 401),
    ):
        app.root_path = root
        assert ask(app, "POST", path, content=b"abc").status_code == status


COUNT = {"h11_max_header_count": 20}
HEADERS = {f"x-{number}": "1" for number in range(21)}


@pytest.mark.parametrize(
    ("path", "config", "headers", "status", "expected"),
    [
        ("/v1/length", {"keys": KEYS}, header("other"), 401, "invalid_api_key"),
        ("/v1/length", {"keys": KEYS}, header("first-key"), None, ""),
        ("/metrics", {}, {}, 404, "no WebSocket"),
        ("/v1/length", {}, {"x-request-id": "i" * 257}, 400, "x-request-id"),
        ("/v1/length", COUNT, HEADERS, 431, "20 headers"),
        # The clients send some of their own.
        ("/v1/length", COUNT, dict(list(HEADERS.items())[:10]), None, ""),
    ],
)
def test_requests_and_websockets_are_refused_alike(
    path: str, config: Any, headers: dict[str, str], status: int | None, expected: str
) -> None:
    app = app_behind(parts(**config))

    @app.websocket("/{rest:path}")
    async def socket(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    outcome = nullcontext() if status is None else pytest.raises(WebSocketDenialResponse)
    with outcome as refused, TestClient(app).websocket_connect(path, headers=headers):
        pass
    assert refused is None or refused.value.status_code == status
    if not path.startswith("/metrics"):
        answer = ask(app, "POST", path, content=b"abc", headers=headers)
        assert answer.status_code == (status or 200) and expected in answer.text
        assert (answer.headers.get("connection") == "close") == (status is not None)


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


def test_a_mounted_secret_is_read_again_and_a_bad_one_keeps_the_old_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kubernetes mounts a link to a link to a folder, which is replaced at once."""
    monkeypatch.setattr("ropeswitch.server.front.limits.keys.time.monotonic", clock := Clock())

    def mount(name: str, content: str, seconds: float = LOOK_SECONDS) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(content)
        os.symlink(name, tmp_path / "new")
        os.replace(tmp_path / "new", tmp_path / "data")
        clock.now += seconds

    mount("one", "# ours\n old \n\nsecond\r\n")
    os.symlink("data/keys", path := tmp_path / "keys")
    ring = KeyRing([digest(b"fixed")], str(path))
    assert all(map(ring.match, (b"old", b"second", b"fixed"))) and not ring.match(b"new") and not ring.match(b"# ours")
    mount("two", "new\n", LOOK_SECONDS / 2)
    assert ring.match(b"old"), "not before a second has passed"
    clock.now += LOOK_SECONDS / 2
    assert ring.match(b"new") and ring.match(b"fixed") and not ring.match(b"old")
    for content in ("", "two words\n"):
        mount(f"bad {len(content)}", content)
        for _ in range(3):
            assert ring.match(b"new") and not ring.match(b"")
            clock.now += LOOK_SECONDS
    path.unlink()
    assert ring.match(b"new")
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(messages) == 3 and all(str(path) in each for each in messages)
    assert not [each for each in messages if "new" in each.replace(str(path), "") or "two words" in each]
    path.write_text("newest\n")
    clock.now += LOOK_SECONDS
    assert ring.match(b"newest") and not ring.match(b"new")
