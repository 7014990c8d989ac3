"""``MODEL@SET``: how such a name is read, what its request's prompts are forced to, and what lists show."""

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.datastructures import State
from vllm import PoolingParams, SamplingParams
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.serving import BaseServing
from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import BeamSearchParams
from vllm.v1.engine.async_llm import AsyncLLM

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.model_patches.switch.config.settings import FORCED_SET, UnsupportedError
from ropeswitch.model_patches.switch.placement import forced_set, with_extra
from ropeswitch.server import aliases
from ropeswitch.server.aliases import accept_aliases
from ropeswitch.server.context import Alias, RequestContext, current
from ropeswitch.server.endpoint_plugin import RopeSwitchEndpoints
from ropeswitch.server.engine_client import Prompts, take_over
from ropeswitch.server.vllm_serve import AliasClient
from tests.server.front.parts import LADDER
from tests.server.placing import carried, chosen, engine_ladder


class Resolver:
    """A resolver of adapters that knows one name."""

    def __init__(self, known: str) -> None:
        self.known = known

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        return LoRARequest(lora_name, 1, "/adapter") if lora_name == self.known else None


def served(*names: str, adapters: tuple[str, ...] = (), listed: bool = False) -> Any:
    """The models of a server, as vLLM makes them."""

    async def add_lora(request: LoRARequest) -> None: ...

    client: Any = SimpleNamespace(
        model_config=SimpleNamespace(model="/weights", max_model_len=16),
        renderer=None,
        input_processor=None,
        add_lora=add_lora,
    )
    models: Any = OpenAIServingModels(client, [BaseModelPath(name, "/weights") for name in names])
    for number, name in enumerate(adapters, start=1):
        models.lora_requests[name] = LoRARequest(name, number, f"/{name}")
    accept_aliases(models, LADDER.names, listed=listed)
    return models


@pytest.fixture(autouse=True)
def context() -> Iterator[RequestContext]:
    made = RequestContext()
    token = current.set(made)
    yield made
    current.reset(token)


@pytest.mark.parametrize(
    ("names", "asked", "alias"),
    [
        (["qwen3"], "qwen3", None),
        (["qwen3"], "qwen3@long", Alias("qwen3@long", "long")),
        (["first", "second"], "second@short", Alias("second@short", "short")),
        # A served name may hold the separator, and wins.
        (["qwen3", "qwen3@long"], "qwen3@long", None),
        (["qwen3@v1"], "qwen3@v1", None),
        (["qwen3@v1"], "qwen3@v1@long", Alias("qwen3@v1@long", "long")),
    ],
)
def test_a_served_name_wins_and_else_the_last_separator_splits(
    context: RequestContext, names: list[str], asked: str, alias: Alias | None
) -> None:
    models = served(*names)
    assert models.is_base_model(asked)
    assert context.alias == alias
    assert models.model_name() == (asked if alias else names[0])


@pytest.mark.parametrize("asked", ["other", "other@long", "@long", "qwen3:long", ""])
def test_an_unknown_model_is_unknown(context: RequestContext, asked: str) -> None:
    models = served("qwen3")
    assert not models.is_base_model(asked) and asked not in models.lora_requests
    assert context.alias is None


@pytest.mark.parametrize("asked", ["qwen3@nope", "qwen3@", "qwen3@LONG", "adapter@nope"])
def test_an_unknown_set_of_a_served_model_names_the_sets(asked: str) -> None:
    models = served("qwen3", adapters=("adapter",))
    with pytest.raises(
        VLLMValidationError, match=r"^model: .* unknown factor set .*known sets: 'short', 'long'"
    ) as error:
        models.is_base_model(asked)
    assert error.value.parameter == "model"


def test_a_model_that_a_route_drops_may_name_a_set(context: RequestContext) -> None:
    """``/invocations`` sets the model to None where no header names one."""
    models = served("qwen3", adapters=("adapter",))
    handler, request = BaseServing(models, models.model_config), SimpleNamespace(model=None)
    for asked, adapter, alias in (
        ("adapter@long", "adapter", "long"),
        ("qwen3@short", None, "short"),
        ("qwen3", None, None),
        ("adapter", None, None),
        ("other", None, None),
        (3, None, None),
    ):
        context.alias, context.model = None, asked
        found = handler._maybe_get_adapters(request)  # type: ignore[arg-type]
        assert (found.lora_name if found else None) == adapter
        assert (context.alias.factor_set if context.alias else None) == alias


def test_without_a_context_no_name_is_an_alias() -> None:
    """No set could be forced, so the name must not be accepted."""
    token = current.set(None)
    assert not served("qwen3").is_base_model("qwen3@long")
    current.reset(token)


@pytest.mark.parametrize("skips_validation", [False, True])
def test_adapters_have_aliases(
    context: RequestContext, skips_validation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SKIP_MODEL_NAME_VALIDATION", str(int(skips_validation)))
    models = served("qwen3", adapters=("adapter", "adapter@long"))
    handler = BaseServing(models, models.model_config)
    for name, adapter, alias in (
        ("adapter@short", "adapter", "short"),
        ("adapter@long@short", "adapter@long", "short"),
        ("qwen3@short", None, "short"),
        # The name of an adapter of its own.
        ("adapter@long", "adapter@long", None),
        ("qwen3", None, None),
    ):
        context.alias = None
        request: Any = SimpleNamespace(model=name)
        assert asyncio.run(handler._check_model(request)) is None
        found = handler._maybe_get_adapters(request)
        assert (found.lora_name if found else None) == adapter
        assert (context.alias.factor_set if context.alias else None) == alias
        assert models.model_name(found) == name
    assert list(models.lora_requests) == ["adapter", "adapter@long"]


def test_adapters_that_a_resolver_finds_have_aliases(context: RequestContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    for known, asked, alias in (("found", "found@long", "long"), ("found@v2", "found@v2", None)):
        models = served("qwen3")
        models.lora_resolvers.append(Resolver(known))
        context.alias = None
        handler, request = BaseServing(models, models.model_config), SimpleNamespace(model=asked)
        assert asyncio.run(handler._check_model(request)) is None  # type: ignore[arg-type]
        assert handler._maybe_get_adapters(request).lora_name == known  # type: ignore[arg-type, union-attr]
        assert (context.alias.factor_set if context.alias else None) == alias
    missing: Any = SimpleNamespace(model="lost@long")
    assert asyncio.run(handler._check_model(missing)).error.code == 404  # type: ignore[union-attr]


def test_adapters_are_loaded_and_unloaded_by_their_own_names() -> None:
    models = served("qwen3", adapters=("adapter",))

    def load(name: str) -> Any:
        return asyncio.run(models.load_lora_adapter(LoadLoRAAdapterRequest(lora_name=name, lora_path="/new")))

    def unload(name: str) -> Any:
        return asyncio.run(models.unload_lora_adapter(UnloadLoRAAdapterRequest(lora_name=name)))

    assert unload("adapter@long").error.code == 404
    for name in ("qwen3@long", "adapter@mine"):
        assert load(name).startswith("Success") and name in models.lora_requests
        assert unload(name).startswith("Success")
    assert unload("adapter").startswith("Success") and not models.lora_requests


@pytest.mark.parametrize("listed", [False, True])
def test_models_list_aliases_on_request(listed: bool) -> None:
    models = served("qwen3", "qwen3@long", adapters=("adapter",), listed=listed)
    cards = asyncio.run(models.show_available_models()).data
    exact = ["qwen3", "qwen3@long", "adapter"]
    more = ["qwen3@short", "qwen3@long@short", "qwen3@long@long", "adapter@short", "adapter@long"]
    assert [card.id for card in cards] == exact + (more if listed else [])
    if listed:
        assert [card.parent for card in cards[3:]] == ["qwen3", "qwen3@long", "qwen3@long", "adapter", "adapter"]
        assert cards[3].root == "/weights" and cards[3].max_model_len == 16


@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=3, extra_args={"other": 1}), PoolingParams(extra_kwargs={"other": 1})]
)
def test_a_forced_set_is_in_a_copy_of_the_parameters(params: Any) -> None:
    """Beams and prompts of one request may share them."""
    before = repr(params)
    forced = with_extra(params, {FORCED_SET: "long"})
    assert forced_set(forced) == "long" and type(forced) is type(params)
    assert forced_set(params) is None and repr(params) == before


def test_every_prompt_of_the_request_is_forced_and_decided(
    context: RequestContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_engine: list[Any] = []
    for method in ("generate", "encode"):
        monkeypatch.setattr(AsyncLLM, method, lambda self, prompt, params, *args: to_engine.append(params))
    client: Any = AsyncLLM.__new__(AsyncLLM)
    admission: Any = SimpleNamespace(admit=lambda *args: None, follow=lambda *args: None)
    beams: list[Any] = []
    handler = SimpleNamespace(beam_search=lambda **kwargs: beams.append(kwargs["params"]))
    state = State({"openai_serving_completion": handler})
    take_over(client, state, Prompts(engine_ladder(LADDER), admission, len))
    context.alias = Alias("qwen3@long", "long")
    client.generate([1], SamplingParams(), "r1")
    client.encode([1], PoolingParams(), "r2")
    handler.beam_search(request_id="r", prompt=[1], params=(asked := BeamSearchParams(2, 4)))
    context.answering = True
    client.generate([1], SamplingParams(), "step")
    assert [chosen(carried(each)) for each in to_engine] == [("long", "forced")] * 3
    assert [chosen(each) for each in context.prompts] == [("long", "forced")] * 3 and beams == [asked]


@pytest.mark.parametrize("name", ["a:b", "a@b", "a b", "ä", ""])
def test_names_of_sets_have_no_separator(name: str) -> None:
    assert aliases.SEPARATOR == "@"
    with pytest.raises(FactorError, match="name"):
        FactorLadder.checked([{"name": name, "max_length": 8, "factors": [1.0]}])


def test_under_vllm_serve_the_set_is_forced_too(context: RequestContext, monkeypatch: pytest.MonkeyPatch) -> None:
    to_engine: list[Any] = []
    for method in ("generate", "encode"):
        monkeypatch.setattr(AsyncLLM, method, lambda self, prompt, params, *args: to_engine.append(params))
    client: Any = AliasClient.__new__(AliasClient)
    client.generate([1], SamplingParams(), "r1")
    context.alias = Alias("qwen3@long", "long")
    client.generate([1], SamplingParams(), "r2")
    client.encode([1], PoolingParams(), "r3")
    assert [forced_set(each) for each in to_engine] == [None, "long", "long"]
    with pytest.raises(VLLMValidationError, match="leave one of them out"):
        client.generate([1], SamplingParams(extra_args={"rope_factor_set": "short"}), "r4")


def test_the_plugin_refuses_a_server_without_an_engine() -> None:
    args = Namespace(additional_config={"ropeswitch": {}})
    with pytest.raises(UnsupportedError, match=r"^VLLM_PLUGINS: a server without an engine"):
        asyncio.run(RopeSwitchEndpoints().init_state(None, State(), args))


@pytest.mark.parametrize("additional_config", [{}, None, {"other": {}}])
def test_the_plugin_adds_nothing_to_a_server_without_the_key(additional_config: Any) -> None:
    app = FastAPI()
    app.state.args = args = Namespace(additional_config=additional_config)
    before = list(app.routes)
    RopeSwitchEndpoints().attach_router(app)
    assert app.routes == before and app.user_middleware == []
    client, state = SimpleNamespace(), State()
    asyncio.run(RopeSwitchEndpoints().init_state(client, state, args))
    assert vars(client) == {} and state._state == {}
