"""``MODEL@SET``: how such a name is read, what its request's prompts are forced to, and what lists show."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from vllm import PoolingParams, SamplingParams
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import ModelCard, OpenAIServingModels
from vllm.lora.request import LoRARequest

from ropeswitch.factors.errors import FieldError
from ropeswitch.model_patches.switch.engine.process_inputs import set_of_model_name
from ropeswitch.server.app.aliases import Alias, Aliases
from ropeswitch.server.app.engine_client import Prompts
from ropeswitch.server.app.vllm_serve import PlainServer
from ropeswitch.server.front.context import Asked, RequestContext, current
from tests.server.front.parts import LADDER
from tests.server.placing import carried, chosen, engine_ladder


def served(*names: str, adapters: tuple[str, ...] = (), listed: bool = False) -> Aliases:
    """The names of a server, with the models as vLLM makes them."""
    config = SimpleNamespace(model="/weights", max_model_len=16)
    client: Any = SimpleNamespace(model_config=config, renderer=None, input_processor=None)
    models: Any = OpenAIServingModels(client, [BaseModelPath(name, "/weights") for name in names])
    for number, name in enumerate(adapters, start=1):
        models.lora_requests[name] = LoRARequest(name, number, f"/{name}")
    return Aliases(models, LADDER.names, listed)


@pytest.mark.parametrize(
    ("names", "asked", "alias"),
    [
        (["qwen3"], "qwen3", None),
        (["qwen3"], "qwen3@long", ("qwen3", "long")),
        (["first", "second"], "second@short", ("second", "short")),
        # A served name may hold the separator, and wins.
        (["qwen3", "qwen3@long"], "qwen3@long", None),
        (["qwen3@v1"], "qwen3@v1", None),
        (["qwen3@v1"], "qwen3@v1@long", ("qwen3@v1", "long")),
        # vLLM answers for a model that no one knows, or a resolver finds it.
        (["qwen3"], "other@long", ("other", "long")),
        (["qwen3"], "other@nope", None),
        (["qwen3"], "other", None),
        (["qwen3"], None, None),
        (["qwen3"], 3, None),
    ],
)
def test_a_served_name_wins_and_else_the_last_separator_splits(
    names: list[str], asked: Any, alias: tuple[str, str] | None
) -> None:
    assert served(*names, adapters=("adapter",)).find(asked) == (None if alias is None else Alias(asked, *alias))


@pytest.mark.parametrize("asked", ["qwen3@nope", "qwen3@", "qwen3@LONG", "adapter@nope"])
def test_an_unknown_set_of_a_served_model_names_the_sets(asked: str) -> None:
    with pytest.raises(FieldError, match=r"unknown factor set .*known sets: 'short', 'long'") as error:
        served("qwen3", adapters=("adapter",)).find(asked)
    assert error.value.field == "model"


@pytest.fixture
def context() -> Iterator[RequestContext]:
    made = RequestContext(asked=Asked(alias=Alias("qwen3@long", "qwen3", "long")))
    token = current.set(made)
    yield made
    current.reset(token)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(max_tokens=1), PoolingParams()])
def test_every_prompt_of_the_request_is_forced(context: RequestContext, params: Any) -> None:
    prompts = Prompts(engine_ladder(LADDER), SimpleNamespace(admit=lambda *_: None), len)  # type: ignore[arg-type]
    assert chosen(carried(prompts.place([1] * 3, params, "r"))) == ("long", "forced")
    assert [chosen(each) for each in context.entered.placements] == [("long", "forced")]


@pytest.mark.parametrize(
    ("asked", "alias", "field"),
    [
        (None, None, None),
        ("long", None, None),
        ("long", Alias("qwen3@long", "qwen3", "long"), None),
        ("short", Alias("qwen3@long", "qwen3", "long"), "model"),
        ("nope", None, "vllm_xargs.rope_factor_set"),
        (3, None, "vllm_xargs.rope_factor_set"),
    ],
)
def test_the_model_and_the_field_must_agree(asked: Any, alias: Alias | None, field: str | None) -> None:
    if field is None:
        served("qwen3").check(asked, alias)
        return
    with pytest.raises(FieldError) as raised:
        served("qwen3").check(asked, alias)
    assert raised.value.field == field


def test_aliases_are_listed_on_request_only() -> None:
    cards = [ModelCard(id="qwen3"), ModelCard(id="qwen3@long")]
    assert served("qwen3").cards(cards) == cards
    found = served("qwen3", listed=True).cards(cards)
    assert [(each.id, each.parent) for each in found[2:]] == [
        ("qwen3@short", "qwen3"),
        ("qwen3@long@short", "qwen3@long"),
        ("qwen3@long@long", "qwen3@long"),
    ]


@pytest.fixture
def plain() -> TestClient:
    """An app of plain ``vllm serve``, whose only route says what it was sent and what is forced."""
    app = FastAPI()
    app.add_middleware(PlainServer)
    app.state.ropeswitch = SimpleNamespace(aliases=served("qwen3"))

    @app.post("/any")
    async def show(request: Request) -> Any:
        body = await request.body()
        return {"body": body.decode(), "length": request.headers["content-length"], "forced": set_of_model_name.get()}

    return TestClient(app)


def test_under_vllm_serve_the_body_and_the_prompts_follow(plain: TestClient) -> None:
    answer = plain.post("/any", json={"model": "qwen3@long", "prompt": "a@b"}).json()
    assert json.loads(answer["body"]) == {"model": "qwen3", "prompt": "a@b"}
    assert (answer["length"], answer["forced"]) == (str(len(answer["body"])), "long")


@pytest.mark.parametrize("body", ['{"model": "qwen3", "prompt": "a@b"}', '["@"]', "{@", '{"model": "x@y"}', ""])
def test_under_vllm_serve_other_bodies_pass_as_they_are(plain: TestClient, body: str) -> None:
    answer = plain.post("/any", content=body).json()
    assert (answer["body"], answer["forced"]) == (body, None)


def test_under_vllm_serve_an_unknown_set_is_refused(plain: TestClient) -> None:
    answer = plain.post("/any", json={"model": "qwen3@nope"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
