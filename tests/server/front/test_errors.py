"""Every error is in OpenAI's shape, and the official client raises the class that belongs to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.background import BackgroundTask
from starlette.testclient import TestClient
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.exceptions import VLLMValidationError

from ropeswitch.server.front.bodies.request import read_long_bodies
from ropeswitch.server.front.context import current
from ropeswitch.server.front.refusal import FAULT, converted
from tests.server.front.parts import app_behind, ask, bearer, error_of, parts, run_raw, server_parts

# The start of one of vLLM 0.32's messages; a real server's others are among the mistakes.
TOO_LONG = "The decoder prompt (length 1025) is longer than the maximum model length of 1024."
TYPES = {
    400: ("invalid_request_error", openai.BadRequestError),
    401: ("authentication_error", openai.AuthenticationError),
    403: ("permission_error", openai.PermissionDeniedError),
    404: ("not_found_error", openai.NotFoundError),
    409: ("conflict_error", openai.ConflictError),
    413: ("invalid_request_error", openai.APIStatusError),
    422: ("invalid_request_error", openai.UnprocessableEntityError),
    429: ("rate_limit_error", openai.RateLimitError),
    500: ("server_error", openai.InternalServerError),
    503: ("server_error", openai.InternalServerError),
}


def failing() -> FastAPI:
    """An app that answers with the status that is asked for, or fails."""
    app = app_behind(parts())

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        status = int((await request.json())["model"])
        if status == 0:
            raise RuntimeError("a secret of the server")
        error = {"message": "said", "type": "BadRequestError", "param": None, "code": status}
        return JSONResponse({"error": error}, status, {"x-kept": "1"})

    return app


@pytest.mark.parametrize("status", TYPES)
def test_the_official_client_raises_the_right_class(status: int) -> None:
    kind, expected = TYPES[status]

    async def request() -> openai.APIStatusError:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=failing()))
        client = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", max_retries=0, http_client=http)
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model=str(status), messages=[])
        return raised.value

    error = asyncio.run(request())
    assert type(error) is expected and error.status_code == status
    assert error.response.headers["x-kept"] == "1"
    assert error.response.headers.get("retry-after") == ("1" if status in (429, 503) else None)
    assert error.type == kind and error.param is None
    assert error.code == {429: "rate_limit_exceeded", 401: "invalid_api_key"}.get(status)
    assert isinstance(error.body, dict) and set(error.body) == {"message", "type", "param", "code"}
    assert error.body["message"] == (FAULT if status == 500 else "said")


def test_a_fault_is_a_500_that_tells_nothing_but_to_the_log() -> None:
    answer = ask(failing(), "POST", "/v1/chat/completions", json={"model": "0"})
    error = error_of(answer)
    assert answer.status_code == 500 and error["type"] == "server_error" and "secret" not in answer.text
    with pytest.raises(RuntimeError, match="a secret"):
        TestClient(failing()).post("/v1/chat/completions", json={"model": "0"})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        *((body, {"message": "said"}) for body in (b'{"error": "said"}', b'{"detail": "said"}', b"said")),
        (b'{"object": "error", "message": "said", "code": 422}', {"message": "said"}),
        (b"", {"message": "Method Not Allowed"}),
        (b'{"status": "dead"}', {"message": "Method Not Allowed"}),
    ],
)
def test_an_error_of_any_shape_gets_openais(body: bytes, expected: dict[str, Any]) -> None:
    answer = json.loads(converted(405, body, anthropic=False))
    kind = {"type": "invalid_request_error", "param": None, "code": None}
    assert answer.pop("error") == kind | expected and answer == ({"status": "dead"} if b"dead" in body else {})


@pytest.mark.parametrize(
    ("status", "given", "expected"),
    [
        (400, {"message": TOO_LONG, "param": "input_tokens"}, ("context_length_exceeded", TOO_LONG)),
        # What a client sent is not taken for a prompt that is too long.
        (400, {"message": f"1 error: {TOO_LONG}", "param": "prompt"}, (None, "1 error: ")),
        (404, {"message": "none", "type": "NotFoundError", "param": "model"}, ("model_not_found", "none")),
        # Nor are a client's megabytes repeated.
        (404, {"message": f"The model `{'a' * 5_000_000}` is not there"}, (None, "The model `aaa")),
        # What is right stays.
        (503, {"message": "leaving", "code": "server_leaving"}, ("server_leaving", "leaving")),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("anthropic", [False, True])
def test_a_code_tells_programs_what_is_wrong(
    status: int, given: dict[str, Any], expected: tuple[str | None, str], anthropic: bool
) -> None:
    body = json.dumps({"error": {"code": status} | given}).encode()
    answer = json.loads(converted(status, body, anthropic=anthropic))
    error = answer.pop("error")
    assert answer == ({"type": "error"} if anthropic else {})
    assert error["code"] == expected[0] and error["message"].startswith(expected[1]) and len(error["message"]) < 700
    assert error["type"] == TYPES[status][0] and error["param"] == given.get("param")


@pytest.mark.parametrize("error", [ValueError("/a" * 4000), VLLMValidationError("wrong", value=["/a" * 4000])])
def test_vllm_does_not_search_a_long_value_for_paths(error: Exception) -> None:
    """Its patterns take cubic time: 7 s for 8 KB, on the event loop."""
    app = app_behind(parts())
    app.state.args = SimpleNamespace(log_error_stack=False)
    init_exception_handler(app)

    @app.post("/")
    async def raising() -> None:
        await fail(error)

    read_long_bodies(app)
    answer = ask(app, "POST", "/")
    assert answer.status_code == 400 and len(answer.content) < 1000


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("event", "kind", "expected"),
    [
        ('data: {"error": {"message": "a secret", "type": "InternalServerError", "code": 500}}', "event-stream", FAULT),
        ('data: {"error": {"message": "why", "type": "BadRequestError", "code": 400}}', "event-stream", "why"),
        (VLLMValidationError("wrong", parameter="prompt"), "event-stream", "wrong"),
        (RuntimeError("a secret"), "event-stream", FAULT),
        # What is no event, or none of an error, stays.
        (RuntimeError("a secret"), "plain", None),
        ('data: {"error"', "event-stream", None),
        ('data: {"error": "text"}', "event-stream", None),
        ('data: {"error": {"code": "x"}}', "event-stream", None),
        # The stream has ended before.
        (BackgroundTask(fail, RuntimeError("a secret")), "event-stream", None),
    ],
)
def test_a_stream_that_fails_ends_with_an_event_in_openais_shape(
    event: str | Exception | BackgroundTask, kind: str, expected: str | None
) -> None:
    app = app_behind(parts())

    @app.post("/")
    async def stream() -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            yield "data: 1\n\n"
            if isinstance(event, Exception):
                raise event
            if isinstance(event, str):
                yield f"{event}\n\n"

        background = event if isinstance(event, BackgroundTask) else None
        return StreamingResponse(events(), media_type=f"text/{kind}", background=background)

    raised = []

    async def noting(*call: Any) -> None:
        try:
            await app(*call)
        except RuntimeError as error:
            raised.append(error)

    parts_sent = run_raw(noting, [{"type": "http.request"}], path="/")[1:]
    # The server logs its own faults.
    assert len(raised) == (not isinstance(event, str | VLLMValidationError))
    assert [each.get("more_body", False) for each in parts_sent].count(False) <= 1
    first, last, *rest = b"".join(each["body"] for each in parts_sent).decode().split("\n\n")
    assert first == "data: 1" and not any(rest)
    if expected is None:
        assert last == (event if isinstance(event, str) else "")
        return
    error = json.loads(last.removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"].startswith(expected)
    assert error["type"] == ("server_error" if expected == FAULT else "invalid_request_error")


def test_answers_name_their_factor_sets_and_errors_do_not() -> None:
    app = app_behind(parts())

    @app.post("/")
    async def answer(status: int) -> Response:
        context: Any = current.get()
        context.entered.placements.extend([SimpleNamespace(name="short"), SimpleNamespace(name="long")])
        return Response(status_code=status)

    found = [ask(app, "POST", "/", params={"status": status}).headers for status in (200, 400)]
    assert [each.get("x-rope-factor-set") for each in found] == ["short, long", None]


@pytest.mark.parametrize("key", ["right", "wrong"])
@pytest.mark.parametrize("path", ["/v1/length", "/v1/nowhere", "/v1/messages"])
def test_answers_errors_and_refusals_name_their_request(path: str, key: str) -> None:
    """Anthropic's clients read another header. An ID that is too long is not repeated: clients reject such headers."""
    front = parts(keys=["right"])
    app = app_behind(front)
    app.state.ropeswitch = server_parts(front, request_ids=True)

    def answered(**headers: str) -> Any:
        found = ask(app, "POST", path, content=b"{}", headers=bearer(key) | headers).headers
        assert found.get("request-id") == (found.get("x-request-id") if path == "/v1/messages" else None)
        return found.get("x-request-id")

    assert len(answered()) == 32
    for given, expected in (("mine", "mine"), ("i" * 256, "i" * 256), ("i" * 257, None)):
        assert answered(**{"x-request-id": given}) == expected
    app.state.ropeswitch = server_parts(front, request_ids=False)
    assert answered() is None
