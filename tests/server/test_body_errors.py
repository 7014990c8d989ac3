"""Wrong bodies are refused with 400 and pydantic's message, also those over which a model's validators stumble."""

import json
from typing import Annotated, Any, Literal

import httpx
import pytest
from fastapi import FastAPI, Form
from pydantic import BaseModel, model_validator

from ropeswitch.server.front.bodies.contents import TOO_MANY, refusal_of_values
from ropeswitch.server.front.bodies.parse import parse
from ropeswitch.server.front.bodies.request import read_long_bodies
from tests.server.front.parts import app_behind, ask, error_of, parts


class Body(BaseModel):
    options: dict[str, int] | None = None
    text: str = ""
    mixed: list[int] | list[list[int]] | list[str] = []

    @model_validator(mode="before")
    @classmethod
    def look(cls, data: Any) -> Any:
        if data.get("options"):
            data["options"].get("a")
        return data


def app_of(path: str, endpoint: Any, method: str = "POST") -> FastAPI:
    app = app_behind(parts())
    app.add_api_route(path, endpoint, methods=[method])
    read_long_bodies(app)
    return app


def answer(body: Any) -> httpx.Response:
    async def take(body: Body) -> str:
        return body.text

    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    app = app_of("/v1/body", take)
    return ask(app, "POST", "/v1/body", content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("body", "message", "field"),
    [
        ({"options": 5}, "The body is not valid for this route: a field is missing or has the wrong type.", None),
        (
            {"mixed": [[1], ["x"]]},
            "mixed[1][0]: Input should be a valid integer, unable to parse string as an integer",
            "mixed[1][0]",
        ),
        ({"vllm_xargs": {"a": 1, "ROPE_x": 1}}, "vllm_xargs.ROPE_x: unknown key", "vllm_xargs.ROPE_x"),
        ({"options": {"\ud800": 1}}, "The body is not valid JSON (which has no NaN, infinity or unpaired", None),
        (b'{"options": ' + b'{"a": ' * 900 + b"1" + b"}" * 901, "options: Input should have", "options"),
    ],
)
def test_a_wrong_body_is_a_400_with_pydantics_message(body: Any, message: str, field: Any) -> None:
    found = answer(body)
    assert found.status_code == 400, found.text
    error = error_of(found)
    assert error["message"].startswith(message) and "\n" not in error["message"]
    assert error["param"] == field or (field is not None and error["param"].startswith(field))
    assert (error["type"], error["code"]) == ("invalid_request_error", None)


def test_right_bodies_are_taken_and_long_values_are_not_repeated() -> None:
    for text in ("\U0001f600", "\\ud800"):
        for content in (json.dumps({"text": text}), json.dumps({"text": text}, ensure_ascii=False)):
            found = answer(content.encode())
            assert (found.status_code, found.json()) == (200, text)
    long = "a" * 10_000
    for body in ({"options": {long: "x"}}, {"options": long}, {"text": {long: long}}):
        assert len(answer(body).content) < 1000


class Item(BaseModel):
    kind: Literal["a"]


def test_of_many_wrong_items_the_first_is_named() -> None:
    """A few are validated together: vLLM's route would collect gigabytes of errors."""
    together: list[int] = []

    class Items(BaseModel):
        input: str | list[Item]

        @model_validator(mode="before")
        @classmethod
        def note(cls, data: Any) -> Any:
            together.append(len(data["input"]))
            return data

    async def take(body: Items) -> int:
        return len(body.input)

    app = app_of("/v1/responses", take)
    right = [{"kind": "a"}] * 40
    assert ask(app, "POST", "/v1/responses", json={"input": right}).json() == 40
    together.clear()
    found = ask(app, "POST", "/v1/responses", json={"input": right + [{"kind": "b"}] * 2_400})
    assert found.status_code == 400 and max(together) < 100
    assert error_of(found)["message"] == "input[40].kind: Input should be 'a'"


def test_a_fault_of_the_handler_stays_one() -> None:
    """The same errors of Python, after the body was accepted."""

    async def take(body: Body) -> str:
        raise KeyError(body.text)

    assert ask(app_of("/v1/body", take), "POST", "/v1/body", json={"text": "a"}).status_code == 500


def test_a_wrong_query_names_its_field() -> None:
    async def one(after: int) -> None: ...

    error = error_of(ask(app_of("/v1/one", one, "GET"), "GET", "/v1/one?after=x"))
    assert error["param"] == "after" and error["message"].startswith("after: Input should be a valid integer")


def message(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": [message(1)] * 19_000}, None),
        ({"messages": [message([1, 1])] * 10_001}, "messages"),
        ({"messages": [message(1)] * 20_001}, "messages"),
        ({"input": [{"output": [{}] * 20_001}]}, "input"),
        ({"input": [message(1)] * 2_501}, "input"),
        ({"tools": [{}] * 20_001}, "tools"),
        # Each wrong item has an error for every type that it might be: 100,000 numbers as messages took 2.5 s and 350 MB.
        ({"messages": [1] * 20_001}, "messages"),
        ({"messages": ["a"] * 20_001}, "messages"),
        ({"tools": ["a"] * 20_001}, "tools"),
        ({"stop": [1] * 20_001}, "stop"),
        ({"prompt": [-1] * 20_001}, "prompt"),
        ({"prompt": [*[1] * 20_001, None]}, "prompt"),
        ({"prompt": [[1, [1] * 20_001]]}, "prompt"),
        ({"input": ["a", *[1] * 2_501]}, "input"),
        # Half a million nulls took 3 s; right numbers take 40 ms for a million.
        ({"allowed_token_ids": [None] * 20_001}, "allowed_token_ids"),
        ({"sampling_params": {"stop_token_ids": [*[1] * 9, *["a"] * 20_001]}}, "sampling_params.stop_token_ids"),
        ({"prompt_token_ids": [[None] * 101] * 200}, "prompt_token_ids"),
        ({"tokens": [*[1] * 30_000, "a"], "token_offsets": [[1, 2]] * 30_000}, None),
        ({"prompt": [[1] * 30_000] * 3, "input": [1] * 30_000}, None),
        ({"messages": [message([{"type": "tool_use", "input": {"rows": [{}] * 30_000}}])]}, None),
        ({"prompt": [["a"] * 20_001]}, "prompt"),
        ({"chat_template_kwargs": {"m": [[0.5] * 200] * 101}}, None),
        ({"input": ["a"] * 30_000}, None),
    ],
)
def test_messages_parts_and_tools_are_limited(body: Any, place: Any) -> None:
    """In all, for each takes time to validate."""
    refusal = refusal_of_values(parse(json.dumps(body).encode()))
    assert (place is None) == (refusal is None)
    if refusal is not None:
        assert refusal.message.endswith(f": {TOO_MANY}") and (refusal.param or "").startswith(place)


def test_a_form_starts_no_more_sequences_than_a_body() -> None:
    class Upload(BaseModel):
        n: int = 1

    async def transcribe(request: Annotated[Upload, Form()]) -> int:
        return request.n

    path = "/v1/audio/transcriptions"
    app = app_of(path, transcribe)
    assert ask(app, "POST", path, data={"n": "2048"}).json() == 2048
    for number in ("2049", "16384.0"):
        found = ask(app, "POST", path, data={"n": number})
        assert found.status_code == 400 and error_of(found)["param"] == "n", found.text
