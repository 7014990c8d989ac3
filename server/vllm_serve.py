"""Adds ``GET /v1/rope``, ``MODEL@SET`` names and scheduling gauges to plain ``vllm serve``, for the endpoint plugin.

Every other feature of the server needs ``ropeswitch serve``. If the switch is off, nothing is added, so a stock server stays
stock even if ``VLLM_PLUGINS`` names ropeswitch.
"""

from argparse import Namespace
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State
from starlette.types import ASGIApp, Receive, Scope, Send

from ropeswitch.model_patches.guard.registry import in_play, require
from ropeswitch.model_patches.switch.config.settings import FORCED_SET, UnsupportedError, settings_of
from ropeswitch.model_patches.switch.placement import with_extra
from ropeswitch.model_patches.switch.plugin import turned_on
from ropeswitch.server import engine_utilities, rope_route, vllm_adapter
from ropeswitch.server.aliases import accept_aliases, alias_set
from ropeswitch.server.context import RequestContext, current
from ropeswitch.server.front.routes import route_path
from ropeswitch.server.in_place import become
from ropeswitch.server.patches import VLLM_SERVE_PATCHES
from ropeswitch.server.scheduling_metrics import PATHS, SchedulingMetrics, fresh


@dataclass(frozen=True)
class RopeState:
    """The app's ``state.ropeswitch`` under ``vllm serve``.

    Attributes:
        rope_info: The response of ``/v1/rope``.
        scheduling_metrics: The gauges of length-aware scheduling, None without it.
    """

    rope_info: rope_route.RopeInfo
    scheduling_metrics: SchedulingMetrics | None


class Contexts:
    """Middleware that gives every HTTP request a context for its alias, and refreshes the gauges before ``/metrics``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        metrics = scope["app"].state.ropeswitch.scheduling_metrics
        if route_path(scope) in PATHS:
            scope = await fresh(metrics, None, scope)
        token = current.set(RequestContext())
        try:
            await self.app(scope, receive, send)
        finally:
            current.reset(token)


class AliasClient(vllm_adapter.AsyncLLM):
    """An engine client that forces the factor set of an alias."""

    def generate(self, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        return super().generate(prompt, _forced(sampling_params), *args, **kwargs)

    def encode(self, prompt: Any, pooling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        return super().encode(prompt, _forced(pooling_params), *args, **kwargs)


def _forced(params: Any) -> Any:
    """Return the parameters with the set that the request's model name asks for."""
    alias = alias_set(params, current.get())
    return params if alias is None else with_extra(params, {FORCED_SET: alias})


def attach(app: FastAPI) -> None:
    """Add the route and the middleware to an app if its switch is on."""
    if turned_on(app.state.args.additional_config):
        app.include_router(rope_route.router)
        app.add_middleware(Contexts)


def start(engine_client: Any, state: State, args: Namespace) -> None:
    """Turn vLLM's engine client and models into our subclasses if the server's switch is on.

    Raises:
        UnsupportedError: in a server without an engine.
        RegistryError: when vLLM's server is not the one that we wrap.
    """
    if not turned_on(args.additional_config):
        return
    settings = settings_of(engine_client.vllm_config) if engine_client is not None else None
    if settings is None:
        raise UnsupportedError("VLLM_PLUGINS: a server without an engine does not support the switch")
    require(VLLM_SERVE_PATCHES)
    # Parts that the settings leave out patch nothing.
    folders = ("switch", *settings.parts)
    patches = [patch for patch in in_play(engine_client.vllm_config) if patch.file.split("/")[1] in folders]
    max_model_len = engine_client.model_config.max_model_len
    engines = engine_utilities.scheduling_reports(engine_client) if settings.length_aware else None
    name = engine_client.model_config.served_model_name
    state.ropeswitch = RopeState(
        rope_info=rope_route.rope_info(settings, max_model_len, patches, VLLM_SERVE_PATCHES),
        scheduling_metrics=None if engines is None else SchedulingMetrics(engines, name),
    )
    become(engine_client, AliasClient)
    accept_aliases(state.openai_serving_models, settings.ladder.names, listed=False)
