"""Every error is in OpenAI's shape, and the official client raises the class that belongs to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from ropeswitch.server.front.error_bodies import FAULT, converted, converted_event
from ropeswitch.server.front.refusal import prompt_too_long
from ropeswitch.server.front.routes import prompt_field
from ropeswitch.server.upstream_messages import mended
from tests.server.front.parts import app_behind, ask, error_of, parts

# Of vLLM 0.32, each for a model of 1024 tokens.
TOO_LONG = [
    "This model's maximum context length is 1024 tokens. However, your prompt contains at least 1025 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=1025)",
    "This model's maximum context length is 1024 tokens. However, your prompt contains 9000 characters (more than 8192 "
    "characters, which is the upper bound for 1024 input tokens). Please reduce the length of the input prompt.",
    "Input length (1025) exceeds model's maximum context length (1024).",
    "The decoder prompt (length 1025) is longer than the maximum model length of 1024. Make sure that `max_model_len` is "
    "no smaller than the number of text tokens.",
    "The decoder prompt (length 1024) plus the number of requested output tokens (at least 1) is longer than the maximum "
    "model length of 1024. Make sure",
    "The engine prompt length 1024 exceeds the max_model_len 1024. Please reduce prompt.",
    "prompt: a sequence of 1025 tokens is longer than the factor ladder's end, 1024 tokens (parameter=prompt)",
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
    assert error.pop("message") == message.partition(" (parameter=")[0]
    assert error == {
        "type": "invalid_request_error",
        "param": "input_tokens",
        "code": "context_length_exceeded",
    }
    for path, field in (
        ("/v1/completions", "prompt"),
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/v1/responses", "input"),
    ):
        found = converted(400, json.dumps(body).encode(), anthropic=False, prompt=prompt_field(path))
        assert json.loads(found)["error"]["param"] == field


def test_what_a_client_sent_is_not_taken_for_a_prompt_that_is_too_long() -> None:
    message = f"1 validation error:\n  {{'input': \"{TOO_LONG[0]}\"}}"
    body = {"error": {"message": message, "type": "Bad Request", "param": "prompt", "code": 400}}
    assert json.loads(converted(400, json.dumps(body).encode(), anthropic=False))["error"]["code"] is None


@pytest.mark.parametrize("message", ["The model `x` does not exist.", "The model `a\nb` does not exist."])
def test_unknown_models(message: str) -> None:
    body = {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}}
    error = json.loads(converted(404, json.dumps(body).encode(), anthropic=False))["error"]
    assert (error["type"], error["param"], error["code"]) == ("not_found_error", "model", "model_not_found")


@pytest.mark.parametrize(
    "message",
    [
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance.",
    ],
)
def test_a_full_queue_of_vllms_own(message: str) -> None:
    body = {"error": {"message": message, "type": "Service Unavailable", "param": None, "code": 503}}
    error = json.loads(converted(503, json.dumps(body).encode(), anthropic=False))["error"]
    assert (error["type"], error["code"]) == ("server_error", "server_overloaded")


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


class Many(BaseModel):
    n: int
    beam: int = Field(1, alias="beam_width")


class Few(BaseModel):
    few: int


@pytest.mark.parametrize(
    ("path", "message", "param"),
    [
        ("/v1/many", "n must be at least 1, got 0.", "n"),
        ("/v1/many", "beam_width: too small", "beam_width"),
        ("/v1/many", "error: boom", None),
        ("/v1/many", "few must be at least 1, got 0.", None),
        ("/v1/either", "few must be at least 1, got 0.", "few"),
        ("/v1/either", "max_completion_tokens must be at least 1.", None),
        ("/v1/none", "n must be at least 1, got 0.", None),
        ("/v1/messages", "max_completion_tokens must be at least 1.", "max_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_param_is_a_field_of_the_route(
    tmp_path: Path, path: str, message: str, param: str | None, stream: bool
) -> None:
    app = app_behind(parts(tmp_path)[0])
    error = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}

    def wrong() -> Response:
        if stream and path != "/v1/messages":
            return StreamingResponse(iter([f"data: {json.dumps(error)}\n\n"]), media_type="text/event-stream")
        return JSONResponse(error, 400)

    @app.post("/v1/many")
    async def many(body: Many) -> Response:
        return wrong()

    @app.post("/v1/either")
    async def either(body: Few | Many) -> Response:
        return wrong()

    @app.post("/v1/none")
    async def none() -> Response:
        return wrong()

    @app.post("/v1/messages")
    async def messages(body: Many) -> Response:
        return wrong()

    answer = ask(app, "POST", path, json={"n": 1})
    assert json.loads(answer.text.removeprefix("data: "))["error"]["param"] == param


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
    assert converted_event(event) == event


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/v1/chat/completions", "Did you mean /v1/chat/completions? Check"),
        ("/chat/completions", "Did you mean /v1/chat/completions? Check"),
        ("/v1/rerank", "generates text"),
        ("/x", "/openapi.json"),
    ],
)
def test_an_unknown_route_asks_for_a_close_one(tmp_path: Path, path: str, says: str) -> None:
    answer = ask(failing(tmp_path), "POST", path)
    assert answer.status_code == 404 and says in error_of(answer)["message"]
    assert error_of(answer)["message"].startswith(f"POST {path}: no such route.")


def test_a_route_names_the_methods_that_it_takes(tmp_path: Path) -> None:
    answer = ask(failing(tmp_path), "GET", "/v1/chat/completions")
    assert error_of(answer)["message"] == "GET /v1/chat/completions: this route accepts only POST."


def test_litellm_finds_openais_words_in_what_is_too_long() -> None:
    """It raises its ContextWindowExceededError by them, not by the code."""
    too_many, _ = mended("max_tokens=100 cannot be greater than max_model_len=8. Please reduce it")
    for message in (prompt_too_long(9, 8).message, too_many):
        assert "This model's maximum context length is 8 tokens" in message
