"""Every wrong request is answered with a sentence that names the mistake, and none of them is logged as a fault."""

import json
from typing import Any

import pytest

from tests.server.mistakes import CHAT, COMPLETIONS, MESSAGES, MISTAKES, RESPONSES, RIGHT, TOOL, Mistake
from tests.server.running import Server

# What only programmers of the server know.
INTERNAL = ("'loc'", "<dict", "<list", "body.")


def wrongs(server: Server, mistake: Mistake) -> list[str]:
    """What is wrong with the answer to a mistake."""
    data = mistake.body if isinstance(mistake.body, bytes | None) else json.dumps(mistake.body).encode()
    headers = {"content-type": "application/json"} | dict(mistake.headers)
    answer = server.send(mistake.method, mistake.path, data, **headers)
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
    with server.log.open("rb") as file:
        file.seek(before)
        log = file.read().decode(errors="replace")
    assert (at := log.find(" failed\n")) < 0, log[max(0, at - 1000) : at + 4000]


@pytest.mark.parametrize("path", RIGHT)
def test_right_requests_are_answered(server: Server, path: str) -> None:
    assert server.post(path, RIGHT[path]).status == 200


# Each was answered with 500, or broke its stream, before it was refused; and the field that the error names.
ODD: tuple[tuple[str, dict[str, Any], str | None], ...] = (
    (COMPLETIONS, {"structured_outputs": [1]}, None),
    (COMPLETIONS, {"vllm_xargs": ["rope_factor_set"]}, None),
    (COMPLETIONS, {"prompt": ["a", "x" * 3000], "stream": True}, None),
    (COMPLETIONS, {"prompt": []}, None),
    (COMPLETIONS, {"prompt": [10**6]}, None),
    (COMPLETIONS, {"structured_outputs": {"regex": "("}}, None),
    (COMPLETIONS, {"logprobs": 100}, None),
    (CHAT, {"structured_outputs": "a"}, None),
    (CHAT, {"tools": [{}], "tool_choice": {"type": "function", "function": {"name": "f"}}}, None),
    ("/invocations", {"tools": [{}], "tool_choice": {"function": {"name": "f"}}}, None),
    (COMPLETIONS, {"stop": "\ud800"}, "stop"),
    (COMPLETIONS, {"request_id": "\udfff"}, "request_id"),
    (RESPONSES, {"session_id": "\ud800"}, "session_id"),
    ("/generative_scoring", {"cache_salt": "\ud800"}, "cache_salt"),
    (COMPLETIONS, {"top_k": 2**64}, "top_k"),
    (MESSAGES, {"top_k": 2**64}, "top_k"),
    (CHAT, {"stream_interval": 2**64, "stream": True}, "stream_interval"),
)


def test_odd_fields_are_refused(server: Server) -> None:
    for path, fields, field in ODD:
        answer = server.post(path, RIGHT[path] | fields)
        assert (answer.status, answer.sets) == (400, None), (path, fields, answer.text)
        error = answer.json["error"]
        assert error["type"] == "invalid_request_error", answer.text
        assert field is None or error["param"].startswith(field), answer.text
    assert server.post(CHAT, RIGHT[CHAT] | {"tools": [TOOL], "tool_choice": "none"}).status == 200


def test_a_stream_that_is_refused_after_it_began_ends_with_the_reason(server: Server) -> None:
    answer = server.post(RESPONSES, RIGHT[RESPONSES] | {"stop_token_ids": [-1], "stream": True})
    [event] = [line for line in answer.text.splitlines() if line.startswith('data: {"error"')]
    error = json.loads(event.removeprefix("data: "))["error"]
    assert error["type"] == "invalid_request_error" and "stop_token_ids" in error["message"]


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
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = RIGHT[CHAT] | {"max_tokens": 200, "response_format": form}
    answer = server.post(CHAT, body)
    content = answer.json["choices"][0]["message"]["content"]
    assert json.loads(content)["a"] in (1, 2) and answer.json["choices"][0]["finish_reason"] == "stop"
