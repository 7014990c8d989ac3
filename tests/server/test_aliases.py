"""``MODEL@SET``: how such a name is read, and what lists show."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import ModelCard, OpenAIServingModels
from vllm.lora.request import LoRARequest

from ropeswitch.factors.errors import FieldError
from ropeswitch.model_patches.switch.engine.process_inputs import set_of_model_name
from ropeswitch.server.app.aliases import Alias, Aliases
from ropeswitch.server.app.vllm_serve import PlainServer
from tests.server.front.parts import LADDER


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
        # A served name may hold the separator, and wins.
        (["qwen3", "qwen3@long"], "qwen3@long", None),
        (["qwen3@v1"], "qwen3@v1@long", ("qwen3@v1", "long")),
        # vLLM answers for a model that no one knows, or a resolver finds it.
        (["qwen3"], "other@long", ("other", "long")),
        (["qwen3"], "other@nope", None),
        (["qwen3"], None, None),
        # An unknown set of a served model.
        *((["qwen3"], name, FieldError) for name in ("qwen3@nope", "qwen3@", "adapter@nope")),
    ],
)
def test_a_served_name_wins_and_else_the_last_separator_splits(names: list[str], asked: Any, alias: Any) -> None:
    aliases = served(*names, adapters=("adapter",))
    if alias is FieldError:
        with pytest.raises(FieldError):
            aliases.find(asked)
    else:
        assert aliases.find(asked) == (None if alias is None else Alias(asked, *alias))


def test_aliases_are_listed_on_request_only() -> None:
    cards = [ModelCard(id="qwen3"), ModelCard(id="qwen3@long")]
    assert served("qwen3").cards(cards) == cards
    found = served("qwen3", listed=True).cards(cards)
    assert [(each.id, each.parent) for each in found[2:]] == [
        ("qwen3@short", "qwen3"),
        ("qwen3@long@short", "qwen3@long"),
        ("qwen3@long@long", "qwen3@long"),
    ]


def test_under_vllm_serve_the_body_and_the_prompts_follow_the_model_s_name() -> None:
    """An app of plain ``vllm serve``, whose only route says what it was sent and what is forced."""
    app = FastAPI()
    app.add_middleware(PlainServer)
    app.state.ropeswitch = SimpleNamespace(aliases=served("qwen3"))

    @app.post("/any")
    async def show(request: Request) -> Any:
        body = await request.body()
        assert int(request.headers["content-length"]) == len(body)
        return [body.decode(), set_of_model_name.get()]

    client = TestClient(app)
    body, forced = client.post("/any", json={"model": "qwen3@long", "prompt": "a@b"}).json()
    assert (json.loads(body), forced) == ({"model": "qwen3", "prompt": "a@b"}, "long")
    for other in ('{"model": "qwen3", "prompt": "a@b"}', '["@"]', "{@", '{"model": "x@y"}', ""):
        assert client.post("/any", content=other).json() == [other, None]
    both = {"model": "qwen3@long", "vllm_xargs": {"rope_factor_set": "long"}}
    assert client.post("/any", json=both).json()[1] == "long"
    for wrong in ({"model": "qwen3@nope"}, both | {"vllm_xargs": {"rope_factor_set": "short"}}):
        refused = client.post("/any", json=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
