"""Adds ``GET /v1/rope``, ``MODEL@SET`` names and scheduling gauges to plain ``vllm serve``, for the endpoint plugin.

Every other feature of the server needs ``ropeswitch serve``. If the switch is off, nothing is added, so a stock server stays
stock even if ``VLLM_PLUGINS`` names ropeswitch.
"""

import json
from argparse import Namespace
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.datastructures import MutableHeaders, State
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ropeswitch.factors.errors import FieldError
from ropeswitch.model_patches.switch.config.settings import FORCED_SET, UnsupportedError, settings_of
from ropeswitch.model_patches.switch.engine.process_inputs import set_of_model_name
from ropeswitch.model_patches.switch.plugin import turned_on
from ropeswitch.server.app import engine_utilities, routes
from ropeswitch.server.app.aliases import SEPARATOR, Aliases
from ropeswitch.server.front.bodies.contents import extra_arguments
from ropeswitch.server.front.refusal import invalid_body, refusal_body
from ropeswitch.server.front.state import route_path
from ropeswitch.server.metrics.scheduling_metrics import PATHS, SchedulingMetrics


class PlainServer:
    """Middleware that replaces an alias in a JSON body, forces its set, and refreshes the gauges before ``/metrics``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._aliased(scope, receive, send)
            return
        if scope["type"] == "http" and route_path(scope) in PATHS:
            scheduling: SchedulingMetrics | None = scope["app"].state.ropeswitch.scheduling_metrics
            if scheduling is not None:
                await scheduling.refresh()
        await self.app(scope, receive, send)

    async def _aliased(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return
        aliases, alias = scope["app"].state.ropeswitch.aliases, None
        values: Any = None
        if SEPARATOR.encode() in body:
            with suppress(ValueError, RecursionError):
                values = json.loads(body)
        try:
            if isinstance(values, dict) and (alias := aliases.find(values.get("model"))) is not None:
                aliases.check(extra_arguments(values).get(FORCED_SET), alias)
        except FieldError as error:
            content = refusal_body(invalid_body(str(error), error.field), anthropic=False)
            await Response(content, 400, media_type="application/json")(scope, receive, send)
            return
        if alias is not None:
            body = json.dumps({**values, "model": alias.model}).encode()
            scope = {**scope, "headers": list(scope["headers"])}
            MutableHeaders(scope=scope)["content-length"] = str(len(body))
        token = set_of_model_name.set(None if alias is None else alias.factor_set)
        whole = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replayed() -> Message:
            return next(whole, None) or await receive()

        try:
            await self.app(scope, replayed, send)
        finally:
            set_of_model_name.reset(token)


def attach(app: FastAPI) -> None:
    """Add the route and the middleware to an app if its switch is on."""
    if turned_on(app.state.args.additional_config):
        app.include_router(routes.rope_router)
        app.add_middleware(PlainServer)


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
    model = engine_client.model_config
    engines = engine_utilities.asking(engine_client, "scheduling_report") if settings.length_aware else None
    # Three of the ServerParts.
    state.ropeswitch = SimpleNamespace(
        rope_info=routes.rope_info(settings, model),
        aliases=Aliases(state.openai_serving_models, settings.ladder.names),
        scheduling_metrics=None if engines is None else SchedulingMetrics(engines, model.served_model_name),
    )
