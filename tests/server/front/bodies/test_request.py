"""Routes behind :func:`read_long_bodies` answer as they would without it, and hold no more bytes than they may."""

import json
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict, Field

from ropeswitch.server.front.bodies import parse
from ropeswitch.server.front.bodies import request as module
from ropeswitch.server.front.bodies.request import read_long_bodies
from ropeswitch.server.front.context import RequestContext, current
from tests.server.front.parts import parts, server_parts


class Other(BaseModel):
    max_tokens: int = 16


class Body(Other):
    model_config = ConfigDict(extra="allow")
    prompt: list[Annotated[int, Field(ge=0)]] | list[list[Annotated[int, Field(ge=0)]]] | str
    validated: Any = None

    def model_post_init(self, context: Any) -> None:
        self.validated = self.prompt


def make_app() -> FastAPI:
    app = FastAPI()

    @app.post("/model")
    async def with_model(body: Body, raw: Request) -> dict[str, Any]:
        # On the event loop, where the thread that parses is not.
        return {"prompt": body.prompt, "max_tokens": body.max_tokens, "parsed": await raw.json() is not None}

    @app.post("/validated")
    async def validated(body: Body) -> Any:
        return body.validated, len(body.prompt)

    @app.post("/other")
    async def with_other(body: Other) -> dict[str, Any]:
        return body.model_dump()

    @app.post("/raw")
    async def with_request(raw: Request) -> Any:
        return await raw.json()

    return app


@pytest.fixture
def context() -> Iterator[RequestContext]:
    token = current.set(made := RequestContext())
    yield made
    current.reset(token)


@pytest.fixture
def client(context: RequestContext, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(module, "LONG", 1000)
    monkeypatch.setattr(module, "VERY_LONG", 2000)
    monkeypatch.setattr(parse, "PIECE", 100)
    app = make_app()
    read_long_bodies(app)
    app.state.ropeswitch = server_parts(parts())
    return TestClient(app)


PROMPTS = [
    *([1, 2], "short", "a text " * 500, list(range(1000)), [list(range(500)), list(range(300))], [1.0] * 1000),
    *([list(range(500)), [1.0, 2]], [3, *["4"] * 1000], [-1, *range(1000)], [*range(1000), None], [[1] * 1000, "text"]),
]


@pytest.mark.parametrize(
    "body",
    [
        *({"prompt": prompt, "max_tokens": 3, "other": [1] * 500} for prompt in PROMPTS),
        {"prompt": list(range(1000)), "max_tokens": "many"},
        list(range(1000)),
    ],
)
@pytest.mark.parametrize("path", ["/model", "/raw", "/other"])
def test_the_same_answer_or_error_as_without(client: TestClient, context: RequestContext, path: str, body: Any) -> None:
    expected, answer = TestClient(make_app()).post(path, json=body), client.post(path, json=body)
    if expected.status_code == 200:
        assert (answer.status_code, answer.json()) == (200, expected.json())
        return
    assert (expected.status_code, answer.status_code) == (422, 400)
    assert context.refusal is not None and expected.json()["detail"][0]["msg"] in context.refusal.message


def test_a_long_body_is_parsed_elsewhere(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def noting(body: bytes) -> Any:
        names.append(threading.current_thread().name)
        return json.loads(body)

    monkeypatch.setattr(module, "parse", noting)
    for tokens in (10, 300, 1000):
        assert client.post("/raw", json={"prompt": list(range(tokens))}).status_code == 200
    assert "parse" not in names[0]
    assert [name.rsplit("_")[0] for name in names[1:]] == ["parse-long", "parse-very-long"]


def test_validation_looks_at_one_token(client: TestClient) -> None:
    assert client.post("/validated", json={"prompt": list(range(7, 1000))}).json() == [[7], 993]


SHORT = {"vllm_xargs": {"rope_factor_set": "short"}}


@pytest.mark.parametrize(
    ("body", "beams", "factor_set", "limited"),
    [
        ({"n": "5", "use_beam_search": True, "max_tokens": 5}, 5, None, True),
        (SHORT | {"n": 5, "max_completion_tokens": 5}, 0, "short", True),
        (SHORT | {"use_beam_search": True, "prompt": [1] * 1000, "max_tokens": None}, 1, "short", False),
        ({"max_output_tokens": 5}, 0, None, True),
        ({"sampling_params": {"max_tokens": 5}}, 0, None, True),
        ({"sampling_params": {}, "prompt": "max_tokens"}, 0, None, False),
    ],
)
def test_beams_set_and_limit_that_a_body_asks_for_reach_its_prompts(
    client: TestClient, context: RequestContext, body: Any, beams: int, factor_set: str | None, limited: bool
) -> None:
    client.post("/raw", json=body)
    asked = context.asked
    assert (asked.beams, asked.factor_set, asked.limited) == (beams, factor_set, limited)
