"""The server's parts by themselves."""

import asyncio
import inspect
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State
from vllm.v1.engine import async_llm

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.guard.records import CLIENTS, PATCHES
from ropeswitch.model_patches.guard.registry import require
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.server.app import engine_utilities
from ropeswitch.server.app.endpoint_plugin import RopeSwitchEndpoints
from ropeswitch.server.app.engine_utilities import check_process, check_reports
from ropeswitch.server.patches import SERVER_PATCHES
from ropeswitch.server.start import refusals
from ropeswitch.server.start.serve import plugin_names
from tests.server.front.parts import LADDER

STARTED_BY_US = Namespace(ropeswitch_front=None)
# Of no use without an engine; what it does is tested in tests/server/front.
ADMISSION: Any = SimpleNamespace()


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


def test_every_api_server_must_be_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    [target] = {patch.target for patch in PATCHES if patch.when == CLIENTS}
    monkeypatch.setattr(engine_utilities, "applied", lambda: [target])
    check_process(PATCHES)
    monkeypatch.setattr(engine_utilities, "applied", lambda: [])
    with pytest.raises(UnsupportedError, match=f"the API server runs without the patch of {target}"):
        check_process(PATCHES)


def test_the_server_wraps_what_it_was_written_for() -> None:
    require(SERVER_PATCHES)


def test_a_server_with_another_upstream_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method itself is another one, as in another release of vLLM."""

    async def generate(self: Any, prompt: Any, params: Any) -> None: ...

    # A test in this process may have put our class under upstream's name.
    monkeypatch.setattr(inspect.unwrap(async_llm.AsyncLLM), "generate", generate)
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
