"""Right requests are answered; with one field made odd they are answered or refused, and never a fault of the server."""

import json
from typing import Any

import httpx2
import pytest

from tests.faults.odd_values import RIGHT, TOOL, bodies, fields_of
from tests.faults.state import metrics, settle
from tests.server.running import Server

COMPLETION, CHAT = RIGHT["/v1/completions"], RIGHT["/v1/chat/completions"]
# Each was answered with 500, or broke its stream, before it was refused.
FOUND: tuple[tuple[str, dict[str, Any], str | None], ...] = (
    ("/v1/completions", COMPLETION | {"structured_outputs": [1]}, None),
    ("/v1/chat/completions", CHAT | {"structured_outputs": "a"}, None),
    (
        "/v1/chat/completions",
        CHAT | {"tools": [{}], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        None,
    ),
    ("/invocations", CHAT | {"tools": [{}], "tool_choice": {"function": {"name": "f"}}}, None),
    ("/v1/completions", COMPLETION | {"stop": "\ud800"}, "stop"),
    ("/v1/completions", COMPLETION | {"request_id": "\udfff"}, "request_id"),
    ("/v1/responses", RIGHT["/v1/responses"] | {"session_id": "\ud800"}, "session_id"),
    ("/generative_scoring", RIGHT["/generative_scoring"] | {"cache_salt": "\ud800"}, "cache_salt"),
    ("/v1/completions", COMPLETION | {"top_k": 2**64}, "top_k"),
    ("/v1/messages", RIGHT["/v1/messages"] | {"top_k": 2**64}, "top_k"),
    ("/v1/chat/completions", CHAT | {"stream_interval": 2**64, "stream": True}, "stream_interval"),
)


@pytest.mark.parametrize("path", RIGHT)
def test_right_requests(server: Server, path: str) -> None:
    assert server.post(path, RIGHT[path]).status == 200


def test_odd_fields_are_refused(server: Server) -> None:
    for path, body, field in FOUND:
        answer = server.post(path, body)
        assert answer.status == 400, (path, body, answer.text)
        error = answer.json["error"]
        assert error["type"] == "invalid_request_error", answer.text
        assert field is None or error["param"].startswith(field), answer.text
    assert server.post("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "none"}).status == 200


def test_a_stream_that_is_refused_after_it_began(server: Server) -> None:
    body = RIGHT["/v1/responses"] | {"stop_token_ids": [-1], "stream": True}
    answer = server.post("/v1/responses", body)
    [event] = [line for line in answer.text.splitlines() if line.startswith('data: {"error"')]
    error = json.loads(event.removeprefix("data: "))["error"]
    assert error["type"] == "invalid_request_error" and "stop_token_ids" in error["message"]


@pytest.mark.full
@pytest.mark.parametrize("path", RIGHT)
def test_every_field_made_odd(server: Server, path: str) -> None:
    settle(server)
    before = metrics(server).get("ropeswitch_requests_total{error}", 0)
    faults: list[Any] = []
    statuses: dict[int, int] = {}
    with httpx2.Client(base_url=server.url, timeout=60, headers={"content-type": "application/json"}) as client:
        for body in bodies(path, fields_of(server.get("/openapi.json").json, path)):
            answer = client.post(path, content=body)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            failed = '"server_error"' in answer.text and 'data: {"error"' in answer.text
            if answer.status_code >= 500 or failed:
                faults.append((body[:500], answer.status_code, answer.text[-300:]))
            elif answer.status_code >= 400:
                assert len(answer.json()["error"]["message"]) > 10, (body[:500], answer.text)
    print(path, statuses)
    assert not faults, (len(faults), faults[:5])
    assert statuses[200] and statuses[400]
    settle(server)
    assert metrics(server).get("ropeswitch_requests_total{error}", 0) == before
