"""Every wrong request is answered with a sentence that names the mistake, and none of them is logged as a fault."""

import json
import urllib.request
from typing import Any

from tests.server.mistakes import MESSAGES, MISTAKES, Mistake
from tests.server.running import Server

# What only programmers of the server know.
INTERNAL = ("'loc'", "<dict", "<list", "body.")


def wrongs(server: Server, mistake: Mistake) -> list[str]:
    """What is wrong with the answer to a mistake."""
    data = mistake.body if isinstance(mistake.body, bytes | None) else json.dumps(mistake.body).encode()
    headers = {"content-type": "application/json"} | dict(mistake.headers)
    answer = server._send(urllib.request.Request(server.url + mistake.path, data, headers, method=mistake.method))
    error: dict[str, Any] = answer.json["error"]
    found = [f"no {each!r}" for each in mistake.says if each not in error["message"]]
    found += [f"{each!r}" for each in INTERNAL if each in error["message"]]
    expected = {"status": mistake.status, "param": mistake.param, "code": mistake.code}
    kind = {400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error"}[mistake.status]
    got = {"status": answer.status, "param": error["param"], "code": error["code"], "type": error["type"]}
    found += [f"{name} is {got[name]!r}" for name, value in (expected | {"type": kind}).items() if got[name] != value]
    found += ["keys"] if set(error) != {"message", "type", "param", "code"} else []
    found += ["shape"] if (answer.json.get("type") == "error") != (mistake.path == MESSAGES) else []
    return [f"{', '.join(found)}: {mistake.path} {str(mistake.body)[:200]}: {error}"] if found else []


def test_mistakes_are_answered_in_sentences_and_log_no_fault(server: Server) -> None:
    before = server.log.stat().st_size
    found = [each for mistake in MISTAKES for each in wrongs(server, mistake)]
    assert not found, "\n".join(found)
    assert len(MISTAKES) >= 50
    with server.log.open("rb") as file:
        file.seek(before)
        log = file.read().decode(errors="replace")
    assert (at := log.find(" failed\n")) < 0, log[max(0, at - 1000) : at + 4000]


def test_the_home_page_and_probes_with_head(server: Server) -> None:
    assert server.get("/").text == server.get("/ui").text
    for path in ("/health/live", "/health/ready"):
        assert server._send(urllib.request.Request(server.url + path, method="HEAD")).status == 200


def test_ids_and_cached_tokens_by_default(server: Server) -> None:
    body = {"model": "tiny", "prompt": [7] * 300, "max_tokens": 1}
    server.post("/v1/completions", body)
    answer = server.post("/v1/completions", body)
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert answer.headers["x-request-id"] and answer.headers["x-request-id"] in answer.json["id"]
    given = server.post("/v1/completions", body, **{"x-request-id": "mine"})
    assert given.headers["x-request-id"] == "mine" and "mine" in given.json["id"]


def test_json_has_no_free_white_space(server: Server) -> None:
    """The model's weights are random: it would fill all the white space that it may."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 200,
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "a",
                "schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
            },
        },
    }
    answer = server.post("/v1/chat/completions", body)
    content = answer.json["choices"][0]["message"]["content"]
    assert json.loads(content)["a"] in (1, 2) and answer.json["choices"][0]["finish_reason"] == "stop"
