"""Adds ``GET /v1/rope``, ``MODEL@SET`` names and scheduling gauges to plain ``vllm serve``, for the endpoint plugin.

Every other feature of the server needs ``ropeswitch serve``. If the switch is off, nothing is added, so a stock server stays
stock even if ``VLLM_PLUGINS`` names ropeswitch.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State
from starlette.types import ASGIApp, Receive, Scope, Send

from ropeswitch.model_patches.guard.registry import in_play
from ropeswitch.model_patches.switch.config.settings import UnsupportedError, settings_of
from ropeswitch.model_patches.switch.plugin import turned_on
from ropeswitch.server.app import engine_utilities, rope_route
from ropeswitch.server.app.aliases import AliasedBodies, Aliases
from ropeswitch.server.front.state import route_path
from ropeswitch.server.metrics.scheduling_metrics import PATHS, SchedulingMetrics, fresh


@dataclass(frozen=True)
class RopeState:
    """The app's ``state.ropeswitch`` under ``vllm serve``.

    Attributes:
        rope_info: The response of ``/v1/rope``.
        aliases: The server's model names.
        scheduling_metrics: The gauges of length-aware scheduling, None without it.
    """

    rope_info: rope_route.RopeInfo
    aliases: Aliases
    scheduling_metrics: SchedulingMetrics | None


class FreshGauges:
    """Middleware that refreshes the gauges before ``/metrics``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and route_path(scope) in PATHS:
            scope = await fresh(scope["app"].state.ropeswitch.scheduling_metrics, scope)
        await self.app(scope, receive, send)


def attach(app: FastAPI) -> None:
    """Add the route and the middleware to an app if its switch is on."""
    if turned_on(app.state.args.additional_config):
        app.include_router(rope_route.router)
        app.add_middleware(AliasedBodies)
        app.add_middleware(FreshGauges)


def start(engine_client: Any, state: State, args: Namespace) -> None:
    """Give the route and the middlewares their state if the server's switch is on.

    Raises:
        UnsupportedError: in a server without an engine.
    """
    if not turned_on(args.additional_config):
        return
    settings = settings_of(engine_client.vllm_config) if engine_client is not None else None
    if settings is None:
        raise UnsupportedError("VLLM_PLUGINS: a server without an engine does not support the switch")
    # Parts that the settings leave out patch nothing.
    folders = ("switch", *settings.parts)
    patches = [patch for patch in in_play(engine_client.vllm_config) if patch.file.split("/")[1] in folders]
    max_model_len = engine_client.model_config.max_model_len
    engines = engine_utilities.scheduling_reports(engine_client) if settings.length_aware else None
    name = engine_client.model_config.served_model_name
    state.ropeswitch = RopeState(
        rope_info=rope_route.rope_info(settings, max_model_len, patches, ()),
        aliases=Aliases(state.openai_serving_models, settings.ladder.names),
        scheduling_metrics=None if engines is None else SchedulingMetrics(engines, name),
    )
