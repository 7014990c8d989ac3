"""The server's parts by themselves."""

import asyncio
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State
from vllm.v1.engine.async_llm import AsyncLLM

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.guard.records import PATCHES
from ropeswitch.model_patches.guard.registry import require
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.server import refusals
from ropeswitch.server.endpoint_plugin import RopeSwitchEndpoints, check_reports
from ropeswitch.server.engine_client import LATE, Prompts, RopeClient, take_over
from ropeswitch.server.patches import SERVER_PATCHES
from ropeswitch.server.plugin_names import plugin_names
from ropeswitch.server.prompt_set import asked_set
from tests.server.front.parts import LADDER
from tests.server.placing import engine_ladder

STARTED_BY_US = Namespace(ropeswitch_front=None)
# Of no use without an engine; what it does is tested in tests/server/front.
ADMISSION: Any = SimpleNamespace()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"vllm_xargs": {"rope_factor_set": "b"}}, "b"),
        ({"vllm_xargs": {"rope_factor_set": 3}}, 3),
        ({"prompt": "rope_factor_set"}, None),
        ({"vllm_xargs": None, "rope_factor_set": "b"}, None),
        (["rope_factor_set"], None),
        (None, None),
    ],
)
def test_the_set_that_a_body_asks_for(body: object, expected: object) -> None:
    assert asked_set(body) == expected


def report(**changes: Any) -> dict[str, Any]:
    return {"rank": 0, "patches": [patch.target for patch in PATCHES], "sets": [*LADDER.names]} | changes


def test_every_worker_must_be_patched() -> None:
    check_reports([report(), report(rank=1)], LADDER, PATCHES)
    for reports, expected in (
        ([], "no worker"),
        ([report(), report(rank=1, patches=[])], "worker 1 runs without"),
        ([report(rank=2, sets=["short"])], "worker 2 rotates"),
    ):
        with pytest.raises(UnsupportedError, match=expected):
            check_reports(reports, LADDER, PATCHES)


PROMPTS = Prompts(engine_ladder(LADDER), ADMISSION, lambda _: None)


def engine_client() -> AsyncLLM:
    return AsyncLLM.__new__(AsyncLLM)


def test_a_handler_that_lost_its_method_is_loud() -> None:
    take_over(engine_client(), State(), PROMPTS)  # a model that does not generate has no handlers
    state = State({"openai_serving_chat": object()})
    with pytest.raises(AttributeError, match="beam_search"):
        take_over(engine_client(), state, PROMPTS)


def test_an_engine_client_of_another_class_is_loud() -> None:
    """Its methods would be lost."""

    class Other(AsyncLLM): ...

    with pytest.raises(TypeError, match=r"RopeClient: does not extend .*Other"):
        take_over(Other.__new__(Other), State(), PROMPTS)


def test_the_server_wraps_what_it_was_written_for() -> None:
    require(SERVER_PATCHES)
    state = State({name: SimpleNamespace(**{method: None}) for name, method, _ in LATE})
    client = engine_client()
    take_over(client, state, PROMPTS)
    assert type(client) is RopeClient
    assert all(getattr(getattr(state, name), method) is not None for name, method, _ in LATE)
    records = [patch for patch in SERVER_PATCHES if patch.file == "server/engine_client.py"]
    assert {patch.target.rsplit(".", 1)[1] for patch in records} == {"AsyncLLM", *(method for _, method, _ in LATE)}


def test_a_server_with_another_upstream_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method itself is another one, as in another release of vLLM."""

    async def generate(self: Any, prompt: Any, params: Any) -> None: ...

    monkeypatch.setattr("vllm.v1.engine.async_llm.AsyncLLM.generate", generate)
    with refusals.channel():
        with pytest.raises(SystemExit) as left:
            asyncio.run(RopeSwitchEndpoints().init_state(None, State(), STARTED_BY_US))
        assert left.value.code == 2
        assert (refusals.reported() or "").startswith("vllm.v1.engine.async_llm.AsyncLLM.generate: fingerprint")


def test_plugin_names_keep_the_users_choice() -> None:
    assert plugin_names({"VLLM_PLUGINS": "x, ropeswitch"}) == "ropeswitch,ropeswitch_refusals,x"
    assert plugin_names({"VLLM_PLUGINS": ""}) == "ropeswitch,ropeswitch_refusals"
    with pytest.raises(UsageError, match="VLLM_PLUGINS: 'x,y' leaves out 'ropeswitch'"):
        plugin_names({"VLLM_PLUGINS": "x,y"})
    assert {"ropeswitch", "lora_filesystem_resolver"} <= set(plugin_names({}).split(","))
