"""Bodies over which a model's validators stumble are refused with the names of the fields, and server faults are not."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request
from pydantic import BaseModel, model_validator

from ropeswitch.server.body_errors import name_wrong_fields
from ropeswitch.server.ingest.routes import read_long_bodies
from tests.server.front.parts import app_behind, ask, error_of, parts


class Tool(BaseModel):
    name: str


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
