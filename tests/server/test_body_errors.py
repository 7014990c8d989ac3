"""Bodies over which a model's validators stumble are refused with the names of the fields, and server faults are not."""

import json
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Form, Request
from pydantic import BaseModel, model_validator

from ropeswitch.server.body_errors import name_wrong_fields
from ropeswitch.server.ingest.parse import parse
from ropeswitch.server.ingest.routes import read_long_bodies
from tests.server.front.parts import app_behind, ask, error_of, parts


class Tool(BaseModel):
    name: str


class Chat(BaseModel):
    messages: list[dict[str, Any]]


class Texts(BaseModel):
    input: list[int] | list[str]

    @model_validator(mode="before")
    @classmethod
    def look(cls, data: Any) -> Any:
        if "labels" in data:
            data["labels"].get("a")
        return data

    labels: dict[str, int] = {}


class Parts(BaseModel):
    input: list[dict[str, str]]


class Body(BaseModel):
    tools: list[Tool] = []
    options: dict[str, int] | None = None
    text: str = ""
    mixed: list[int] | list[list[int]] | list[str] = []

    @model_validator(mode="before")
    @classmethod
    def look(cls, data: Any) -> Any:
        if data.get("tools"):
            assert data["tools"][0]["name"]
        if data.get("options"):
            data["options"].get("a")
        if data.get("text") == "broken":
            raise KeyError("a fault of the server")
        return data


def answer(folder: Path, body: Any) -> httpx.Response:
    app = app_behind(parts(folder)[0])

    @app.post("/v1/body")
    async def take(body: Body) -> str:
        return body.text

    read_long_bodies(app)
    name_wrong_fields(app)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(app, "POST", "/v1/body", content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [{}]}, "tools[0].name"),
        ({"tools": 5}, "tools"),
        ({"tools": [5], "text": 7}, "tools[0]"),
        ({"options": [1]}, "options"),
        ([1], None),
        ({"text": "\ud800"}, "text"),
        ({"tools": [{"name": "a\udfff"}]}, "tools[0].name"),
        ({"options": {"\ud800": 1}}, "options"),
        (b'{"text": "\xed\xa0\x80"}', "text"),
        ('{"text": "\ud800"}'.encode("utf-16", "surrogatepass"), "text"),
        (b'{"options": ' + b'{"a": ' * 900 + b'"\\ud800"' + b"}" * 901, "options"),
    ],
)
def test_the_field_is_named(tmp_path: Path, body: Any, field: Any) -> None:
    found = answer(tmp_path, body)
    assert found.status_code == 400, found.text
    error = error_of(found)
    assert error["param"] == field and error["message"].startswith(f"{field or 'body'}: ")


def test_the_route_that_takes_what_others_do_may_have_none_of_them(tmp_path: Path) -> None:
    """As that of a model that does not generate."""
    app = app_behind(parts(tmp_path)[0])

    @app.post("/invocations")
    async def invocations(raw_request: Request) -> int:
        return len(await raw_request.json())

    read_long_bodies(app)
    name_wrong_fields(app)
    assert ask(app, "POST", "/invocations", content=b"[1, 2]").json() == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"request_ids": ["a"]}', None),
        (b'{"request_ids": "a"}', None),
        (b"[]", "body: [] must be an object."),
        (b"null", "body: "),
        (b"{}", "request_ids: missing"),
        (b'{"request_ids": 5}', "request_ids: 5 must be a string or a list."),
        (b'{"request_ids": ["a", {}]}', "request_ids[1]: {} must be a string."),
        (b"[" * 100_000, "The body cannot be parsed."),
    ],
)
def test_the_route_that_aborts_requests(tmp_path: Path, content: bytes, said: str | None) -> None:
    """vLLM reads its body by itself, and aborts in the background."""
    app = app_behind(parts(tmp_path)[0])

    @app.post("/inference/v1/abort_requests")
    async def abort(raw_request: Request) -> list[str]:
        return list((await raw_request.json())["request_ids"])

    read_long_bodies(app)
    name_wrong_fields(app)
    found = ask(
        app, "POST", "/inference/v1/abort_requests", content=content, headers={"content-type": "application/json"}
    )
    assert found.status_code == (200 if said is None else 400), found.text
    assert said is None or error_of(found)["message"].startswith(said)


def message(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": [message(1)] * 20_000}, None),
        ({"messages": [message([1])] * 20_000}, None),
        ({"messages": [message([1, 1])] * 10_001}, "messages"),
        ({"messages": [message(1)] * 20_001}, "messages"),
        ({"messages": [[message(1)] * 10_001] * 2}, "messages"),
        ({"messages": [message([1] * 20_001)]}, "messages"),
        ({"input": [{"output": [{}] * 20_001}]}, "input"),
        ({"tools": [{}] * 20_001}, "tools"),
        ({"tools": [{"enum": ["a"] * 30_000}]}, None),
        ({"tools": [{"tools": [{}] * 20_001}]}, "tools"),
        ({"input": [{"actions": [1] * 20_002}]}, "input"),
        ({"messages": [message([{"type": "tool_use", "input": {"rows": [{}] * 30_000}}])]}, None),
        ({"documents": {"content": [{}] * 20_001}}, "documents"),
        ({"prompt": [["a"] * 20_001]}, "prompt"),
        ({"data": {"points": [{"x": 1}] * 20_001}}, None),
        ({"chat_template_kwargs": {"m": [[0.5] * 200] * 101}}, None),
        ({"response_format": {"enum": [{}] * 20_001}}, None),
        ({"input": ["a"] * 30_000}, None),
        ({"input": [[1] * 30_000] * 2}, None),
    ],
)
def test_messages_parts_and_tools_are_limited(body: Any, place: Any) -> None:
    """In all, for each takes time to validate."""
    fault = parse(json.dumps(body).encode()).fault
    assert (place is None) == (fault is None)
    if fault is not None:
        assert fault.kind == "too_many_parts" and fault.place[:1] == (place,)


def test_json_in_too_many_levels_is_the_client_s_fault(tmp_path: Path) -> None:
    """Also on the route that reads its body by itself."""
    app = app_behind(parts(tmp_path)[0])

    @app.post("/v1/completions")
    async def take(body: Body) -> str:
        return body.text

    @app.post("/invocations")
    async def invocations(raw_request: Request) -> int:
        return len(await raw_request.json())

    read_long_bodies(app)
    name_wrong_fields(app)
    for path in ("/v1/completions", "/invocations"):
        found = ask(app, "POST", path, content=b"[" * 100_000, headers={"content-type": "application/json"})
        assert found.status_code == 400, found.text


def test_a_form_starts_no_more_sequences_than_a_body(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path)[0])

    class Upload(BaseModel):
        n: int = 1

    @app.post("/v1/audio/transcriptions")
    async def transcribe(request: Annotated[Upload, Form()]) -> int:
        return request.n

    read_long_bodies(app)
    name_wrong_fields(app)
    path = "/v1/audio/transcriptions"
    assert ask(app, "POST", path, data={"n": "1024"}).json() == 1024
    for number in ("1025", "16384.0"):
        found = ask(app, "POST", path, data={"n": number})
        assert found.status_code == 400 and error_of(found)["param"] == "n", found.text


def test_the_route_that_chooses_checks_long_lists_first(tmp_path: Path) -> None:
    app = app_behind(parts(tmp_path)[0])

    @app.post("/v1/completions")
    async def take(body: Body) -> str:
        return body.text

    @app.post("/invocations")
    async def invocations(raw_request: Request) -> int:
        return len(await raw_request.json())

    read_long_bodies(app)
    name_wrong_fields(app)
    right = [{"name": "a"}] * 20
    assert ask(app, "POST", "/invocations", json={"tools": right}).json() == 1
    found = ask(app, "POST", "/invocations", json={"tools": [*right, 5]})
    assert found.status_code == 400
    assert error_of(found)["message"] == "tools[20]: 5 must be an object."


@pytest.mark.parametrize("text", ["fine", "\U0001f600", "\\ud800", "한국어"])
def test_right_bodies_are_taken(tmp_path: Path, text: str) -> None:
    body = {"tools": [{"name": "a"}], "options": {"a": 1}, "text": text}
    for content in (json.dumps(body).encode(), json.dumps(body, ensure_ascii=False).encode()):
        found = answer(tmp_path, content)
        assert (found.status_code, found.json()) == (200, text)


def test_a_fault_of_the_server_stays_one(tmp_path: Path) -> None:
    assert answer(tmp_path, {"text": "broken"}).status_code == 500


def test_of_many_wrong_items_the_first_is_named(tmp_path: Path) -> None:
    found = answer(tmp_path, {"tools": [{"name": "a"}] * 2500 + [5] * 100_000})
    assert found.status_code == 400 and len(found.content) < 1000
    assert error_of(found)["message"] == "tools[2500]: 5 must be an object."


@pytest.mark.parametrize(
    "items", [[5] * 5000 + ["x"], ["x"] * 5000 + [5], [5] * 5000 + [[5]], [[5]] * 5000 + [5], [None] * 5000]
)
def test_items_of_two_types(tmp_path: Path, items: list[Any]) -> None:
    found = answer(tmp_path, {"mixed": items})
    assert found.status_code == 400 and len(found.content) < 1000


@pytest.mark.parametrize(
    "body",
    [
        {"options": {"a": 2**70}},
        {"tools": [{"name": "a", "more": [2**64]}]},
        b'{"text": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"tools": ' + b'{"a": ' * 900 + b"1" + b"}" * 901,
    ],
)
def test_what_no_engine_can_be_sent(tmp_path: Path, body: Any) -> None:
    found = answer(tmp_path, body)
    assert found.status_code == 400
    assert any(each in error_of(found)["message"] for each in ("must be a whole number from", "must have at most 128"))


def nested(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": ["a", "\ud800"]}, "input[1]: "),
        ({"input": [1], "priority": 2**70}, "priority: "),
        ({"messages": [{"role": "usr"}]}, "messages[0].role: "),
        ({"input": [1], "vllm_xargs": {"rope_factor_sets": "a"}}, "vllm_xargs.rope_factor_sets: "),
        ({"input": [1], "labels": [1]}, "labels: "),
        ({"input": [1] * 5000 + ["x"]}, 'input[5000]: "x" must be a whole number.'),
        ({"input": [{"a": "b"}] * 5000 + [{"a": 1}]}, "input[5000].a: 1 must be a string."),
        ({"input": 5}, "input: 5 must be a list."),
        ({"input": ["a"]}, None),
        ({"input": [{"a": "b"}] * 5000}, None),
        ({"messages": [{"role": "user"}]}, None),
    ],
)
def test_a_body_of_one_of_several_models(tmp_path: Path, body: Any, message: str | None) -> None:
    """As vLLM's routes for pooling and ``/tokenize`` have them."""
    app = app_behind(parts(tmp_path)[0])

    @app.post("/v1/embeddings")
    async def take(body: Annotated[Texts | Chat | Parts, "a comment"]) -> None: ...

    read_long_bodies(app)
    name_wrong_fields(app)
    found = ask(
        app, "POST", "/v1/embeddings", content=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    assert found.status_code == (200 if message is None else 400), found.text
    if message is not None:
        assert error_of(found)["message"].startswith(message) and len(found.content) < 1000


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (nested(128), False),
        (nested(129), True),
        ("[" * 128 + "]" * 128, False),
        ("[" * 129 + "]" * 129, True),
        ("[" * 100_000, True),
        ("[" * 500, False),
        ("not JSON [" * 500, False),
        (json.dumps({"a": "[" * 500}), False),
        ('{"b": "\\ud800", "a": ' + nested(400) + "}", True),
        ('{"b": ' + str(2**70) + ', "a": ' + nested(400) + "}", True),
        (json.dumps({"b": 2**70, "a": [[]] * 200}), False),
    ],
)
def test_arguments_that_upstream_parses(arguments: str, refused: bool) -> None:
    """It answers too many levels with 500, after a parse that depends on the depth of its stack."""
    function = {"name": "f", "arguments": arguments}
    call = {"role": "assistant", "tool_calls": [{"function": function}]}
    chats = {
        ("messages", 0, "tool_calls", 0, "function", "arguments"): {"messages": [call]},
        ("messages", 1, 0, "tool_calls", 0, "function", "arguments"): {"messages": [[], [call]]},
        ("input", 0, "arguments"): {"input": [function]},
    }
    for place, body in chats.items():
        fault = parse(json.dumps(body).encode()).fault
        assert (None if fault is None else (fault.kind, fault.place)) == (("too_deep", place) if refused else None)
    assert parse(json.dumps({"metadata": function}).encode()).fault is None
