"""Every error is in OpenAI's shape, and the official client raises the class that belongs to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import openai
import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.testclient import TestClient
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.exceptions import VLLMValidationError

from ropeswitch.server.front.bodies.request import read_long_bodies
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.limits.shares import Shares
from ropeswitch.server.front.refusal import FAULT, converted, converted_event
from tests.server.front.parts import app_behind, ask, error_of, parts

# Of vLLM 0.32, each for a model of 1024 tokens.
TOO_LONG = [
    "This model's maximum context length is 1024 tokens. However, your prompt contains at least 1025 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=1025)",
    "The decoder prompt (length 1025) is longer than the maximum model length of 1024. Make sure that `max_model_len` is "
    "no smaller than the number of text tokens.",
    "max_tokens=1025 cannot be greater than max_model_len=1024. Please request fewer output tokens.",
]
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


def failing(folder: Path) -> FastAPI:
    """An app that answers with the error that is asked for, in each of the shapes that there are."""
    app = app_behind(parts(folder)[0])

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await request.json()
        status, shape = int(asked["model"]), asked["messages"][0]["content"]
        if shape == "raised":
            raise HTTPException(status, "said", {"x-kept": "1"})
        if shape == "fault":
            raise RuntimeError("a secret of the server")
        bodies: dict[str, Any] = {
            "vllm": {"error": {"message": "said", "type": "BadRequestError", "param": None, "code": status}},
            "text": {"error": "said"},
            "detail": {"detail": "said"},
            "old": {"object": "error", "message": "said", "type": "BadRequestError", "param": None, "code": status},
        }
        headers = {"x-kept": "1"}
        if shape == "plain":
            return PlainTextResponse("said", status, headers)
        if shape == "empty":
            return Response(status_code=status, headers=headers)
        return JSONResponse(bodies[shape], status, headers)

    return app


@pytest.mark.parametrize("shape", ["vllm", "text", "detail", "old", "plain", "raised", "empty"])
@pytest.mark.parametrize("status", sorted(TYPES))
def test_the_official_client_raises_the_right_class(tmp_path: Path, status: int, shape: str) -> None:
    kind, expected = TYPES[status]

    async def request() -> openai.APIStatusError:
        transport = httpx2.ASGITransport(app=failing(tmp_path))
        client = openai.AsyncOpenAI(
            api_key="none",
            base_url="http://test/v1",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        )
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model=str(status), messages=[{"role": "user", "content": shape}])
        return raised.value

    error = asyncio.run(request())
    assert type(error) is expected and error.status_code == status
    assert error.response.headers["x-kept"] == "1"
    assert error.type == kind and error.param is None
    assert error.code == {429: "rate_limit_exceeded", 401: "invalid_api_key"}.get(status)
    assert isinstance(error.body, dict) and set(error.body) == {"message", "type", "param", "code"}
    if status == 500:
        assert error.body["message"] == FAULT
    else:
        assert error.body["message"] == "said" if shape != "empty" else error.body["message"]


def test_errors_that_say_when_to_come_back(tmp_path: Path) -> None:
    for status in (429, 503):
        body = {"model": str(status), "messages": [{"role": "user", "content": "vllm"}]}
        assert ask(failing(tmp_path), "POST", "/v1/chat/completions", json=body).headers["retry-after"] == "1"


def test_a_fault_is_a_500_that_tells_nothing(tmp_path: Path) -> None:
    body = {"model": "500", "messages": [{"role": "user", "content": "fault"}]}
    answer = ask(failing(tmp_path), "POST", "/v1/chat/completions", json=body)
    error = error_of(answer)
    assert answer.status_code == 500 and error["type"] == "server_error" and "secret" not in answer.text


def test_a_fault_still_reaches_the_servers_log(tmp_path: Path) -> None:
    app = failing(tmp_path)

    async def request() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            body = {"model": "500", "messages": [{"role": "user", "content": "fault"}]}
            await client.post("/v1/chat/completions", json=body)

    with pytest.raises(RuntimeError, match="a secret"):
        asyncio.run(request())


def test_unknown_paths_and_methods(tmp_path: Path) -> None:
    app = failing(tmp_path)
    for path in ("/v1/nothing", "/", "/v1/models"):
        answer = ask(app, "GET", path)
        assert answer.status_code == 404 and error_of(answer)["type"] == "not_found_error"
    answer = ask(app, "GET", "/v1/length")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert error_of(answer)["type"] == "invalid_request_error"
    assert ask(app, "HEAD", "/v1/length").status_code == 405


@pytest.mark.parametrize("message", TOO_LONG)
def test_prompts_that_are_too_long(message: str) -> None:
    body = {"error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    error = json.loads(converted(400, json.dumps(body).encode(), anthropic=False))["error"]
    assert error == {
        "message": message,
        "type": "invalid_request_error",
        "param": "input_tokens",
        "code": "context_length_exceeded",
    }


def test_what_a_client_sent_is_not_taken_for_a_prompt_that_is_too_long() -> None:
    message = f"1 validation error:\n  {{'input': \"{TOO_LONG[0]}\"}}"
    body = {"error": {"message": message, "type": "Bad Request", "param": "prompt", "code": 400}}
    assert json.loads(converted(400, json.dumps(body).encode(), anthropic=False))["error"]["code"] is None


def test_an_error_does_not_repeat_megabytes_of_a_client() -> None:
    body = json.dumps({"error": {"message": f"The model `{'a' * 5_000_000}` does not exist.", "code": 404}}).encode()
    answer = converted(404, body, anthropic=False)
    assert len(answer) < 1000 and b"The model `aaa" in answer and b"does not exist." in answer


@pytest.mark.parametrize("error", [ValueError("/a" * 4000), VLLMValidationError("wrong", value=["/a" * 4000])])
def test_vllm_does_not_search_a_long_value_for_paths(error: Exception) -> None:
    """Its patterns take cubic time: 7 s for 8 KB, on the event loop."""
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    init_exception_handler(app)

    @app.post("/")
    async def fail() -> None:
        raise error

    read_long_bodies(app)
    app.state.ropeswitch = SimpleNamespace(
        front=SimpleNamespace(held_bodies=Shares("--max-held-body-bytes", 1, weight=1))
    )
    token = current.set(RequestContext())
    answer = TestClient(app).post("/")
    current.reset(token)
    assert answer.status_code == 400 and len(answer.content) < 1000


def test_unknown_models() -> None:
    body = {"error": {"message": "none", "type": "NotFoundError", "param": "model", "code": 404}}
    error = json.loads(converted(404, json.dumps(body).encode(), anthropic=False))["error"]
    assert (error["type"], error["param"], error["code"]) == ("not_found_error", "model", "model_not_found")


def test_what_is_right_stays() -> None:
    error = {"message": "leaving", "type": "server_error", "param": None, "code": "server_leaving"}
    assert json.loads(converted(503, json.dumps({"error": error}).encode(), anthropic=False)) == {"error": error}
    state = json.loads(converted(503, b'{"status": "dead"}', anthropic=False))
    assert state["status"] == "dead" and state["error"]["message"] == "Service Unavailable"


def test_anthropics_clients_find_what_they_look_for() -> None:
    body = {"type": "error", "error": {"type": "BadRequestError", "message": "said"}}
    answer = json.loads(converted(400, json.dumps(body).encode(), anthropic=True))
    assert answer == {
        "type": "error",
        "error": {"message": "said", "type": "invalid_request_error", "param": None, "code": None},
    }


def test_anthropics_clients_are_refused_in_their_own_shape(tmp_path: Path) -> None:
    answer = ask(app_behind(parts(tmp_path, keys=["key"])[0]), "POST", "/v1/messages", content=b"{}")
    assert answer.status_code == 401 and answer.json()["type"] == "error"
    assert error_of(answer)["type"] == "authentication_error"


def test_errors_in_streams(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path)[0])
    error = {"message": "a secret", "type": "InternalServerError", "param": None, "code": 500}
    events = ['data: {"id": 1}\n\n', f"data: {json.dumps({'error': error})}\n\n", "data: [DONE]\n\n"]

    @app.post("/v1/stream")
    async def stream() -> StreamingResponse:
        async def each() -> AsyncIterator[str]:
            for event in events:
                yield event

        return StreamingResponse(each(), media_type="text/event-stream")

    answer = ask(app, "POST", "/v1/stream")
    first, second, third = answer.text.split("\n\n")[:3]
    assert answer.status_code == 200 and (first, third) == ('data: {"id": 1}', "data: [DONE]")
    changed = json.loads(second.removeprefix("data: "))["error"]
    assert changed == {"message": FAULT, "type": "server_error", "param": None, "code": None}


@pytest.mark.parametrize(
    "event", [b'data: {"error"', b'data: {"error": "text"}', b'data: {"error": {"code": "x"}}\n\n']
)
def test_other_events_stay(event: bytes) -> None:
    assert converted_event(event) is None
