"""Every wrong request is answered with a sentence that names the mistake, and none of them is logged as a fault."""

import json
from typing import Any

from tests.server.mistakes import CHAT, MESSAGES, MISTAKES, RESPONSES, RIGHT, TOOL, Mistake
from tests.server.observed import Log
from tests.server.running import Server

# What only programmers of the server know.
INTERNAL = ("'loc'", "<dict", "<list", "body.")
TYPES = {400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error"}


def wrongs(server: Server, mistake: Mistake) -> str | None:
    """What is wrong with the answer to a mistake."""
    data = mistake.body if isinstance(mistake.body, bytes | None) else json.dumps(mistake.body).encode()
    answer = server.send(mistake.method, mistake.path, data, **{"content-type": mistake.content_type})
    error: dict[str, Any] = dict(answer.json["error"])
    message = error.pop("message")
    expected = {"type": TYPES[mistake.status], "param": mistake.param, "code": mistake.code}
    right = (answer.status, error) == (mistake.status, expected) and all(each in message for each in mistake.says)
    right &= not any(each in message for each in INTERNAL)
    right &= (answer.json.get("type") == "error") == (mistake.path == MESSAGES)
    return None if right else f"{mistake.path} {str(mistake.body)[:200]}: {answer.status} {error} {message}"


def test_mistakes_are_answered_in_sentences_and_log_no_fault(server: Server) -> None:
    log = Log(server)
    found = [wrong for mistake in MISTAKES if (wrong := wrongs(server, mistake)) is not None]
    assert not found, "\n".join(found)
    assert " failed\n" not in log.text()


def test_right_requests_are_answered(server: Server) -> None:
    for path, body in [*RIGHT.items(), (CHAT, RIGHT[CHAT] | {"tools": [TOOL], "tool_choice": "none"})]:
        assert server.post(path, body).status == 200, path


def test_a_stream_that_is_refused_after_it_began_ends_with_the_reason(server: Server) -> None:
    answer = server.post(RESPONSES, RIGHT[RESPONSES] | {"stop_token_ids": [-1], "stream": True})
    [event] = [line for line in answer.text.splitlines() if line.startswith('data: {"error"')]
    error = json.loads(event.removeprefix("data: "))["error"]
    assert error["type"] == "invalid_request_error" and "stop_token_ids" in error["message"]
