"""Every response names its request, refusals too, and on Anthropic's routes also in the header that its clients read."""

from pathlib import Path

import httpx
import pytest

from tests.server.front.parts import app_behind, ask, bearer, parts, server_parts


def answered(folder: Path, path: str, *, request_ids: bool = True, **headers: str) -> httpx.Response:
    front, _ = parts(folder, keys=["right"])
    app = app_behind(front)
    app.state.ropeswitch = server_parts(front, request_ids=request_ids)
    return ask(app, "POST", path, content=b"{}", headers=headers)


@pytest.mark.parametrize("key", ["right", "wrong"])
@pytest.mark.parametrize("path", ["/v1/length", "/v1/nowhere"])
def test_answers_errors_and_refusals_name_their_request(tmp_path: Path, path: str, key: str) -> None:
    own = answered(tmp_path, path, **bearer(key)).headers
    assert len(own["x-request-id"]) == 32 and "request-id" not in own
    assert answered(tmp_path, path, **bearer(key), **{"x-request-id": "mine"}).headers["x-request-id"] == "mine"


@pytest.mark.parametrize("key", ["right", "wrong"])
def test_anthropics_clients_find_it_too(tmp_path: Path, key: str) -> None:
    headers = answered(tmp_path, "/v1/messages", **bearer(key)).headers
    assert headers["request-id"] == headers["x-request-id"]


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    headers = answered(tmp_path, "/v1/messages", request_ids=False, **bearer("wrong")).headers
    assert "x-request-id" not in headers and "request-id" not in headers


@pytest.mark.parametrize("path", ["/v1/length", "/v1/messages"])
def test_an_id_that_is_too_long_is_not_repeated(tmp_path: Path, path: str) -> None:
    """Clients reject a response whose headers are as long as those that they may send."""
    found = answered(tmp_path, path, **bearer("right"), **{"x-request-id": "i" * 257})
    assert found.status_code == 400 and "256 bytes" in found.text
    assert "x-request-id" not in found.headers and "request-id" not in found.headers
    longest = "i" * 256
    assert answered(tmp_path, path, **bearer("right"), **{"x-request-id": longest}).headers["x-request-id"] == longest
