"""Rebuilds the app's routes with a route class that reads long bodies off the event loop and reports progress.

The routes also refuse invalid bodies (``body_errors.py``), and keep the errors of their handlers for the log.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import State

from ropeswitch.server.app.parts import ServerParts
from ropeswitch.server.front.bodies import progress
from ropeswitch.server.front.bodies.body_errors import refusal_of
from ropeswitch.server.front.bodies.request import LongRequest, complete
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.refusal import RefusedError

# Seconds after which a parsing thread hands the GIL to the event loop; Python's default is 0.005. The loop releases the GIL
# at every system call, and waits this long for it each time.
SWITCH_SECONDS = 0.0005


class LongRoute(APIRoute):
    """A route that reads its request as a :class:`LongRequest`, as FastAPI documents for custom request classes.

    Args:
        state: The app's state; once it serves, its ``ropeswitch`` is a :class:`~ropeswitch.server.app.parts.ServerParts`.
        route: The arguments of FastAPI's route.
    """

    def __init__(self, state: State, **route: Any) -> None:
        super().__init__(**route)
        self._state = state
        # An endpoint that reads its body itself gets all of it.
        self._samples = self.body_field is not None and inspect.iscoroutinefunction(self.endpoint)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, given a :class:`LongRequest`."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            parts: ServerParts = self._state.ropeswitch
            long = LongRequest(request.scope, request.receive)
            long.held, long.most_sequences = parts.front.held_bodies, parts.front.max_sequences
            long.context, long.aliases, long.takes_samples = _context(), parts.aliases, self._samples
            try:
                return await handler(long)
            except Exception as error:
                if (refusal := refusal_of(error)) is not None:
                    raise long.context.refuse(RefusedError(refusal)) from error
                long.context.error = error
                raise
            finally:
                long.release()

        return handle


def read_long_bodies(app: FastAPI) -> None:
    """Make every route of an app a :class:`LongRoute`."""
    sys.setswitchinterval(SWITCH_SECONDS)
    names = set(inspect.signature(APIRoute).parameters) - {"endpoint"}
    for place, route in enumerate(app.router.routes):
        if isinstance(route, APIRoute):
            values = {name: getattr(route, name) for name in names if hasattr(route, name)}
            endpoint = route.endpoint
            if inspect.iscoroutinefunction(endpoint):
                endpoint = _completing(endpoint) if route.body_field is not None else endpoint
                endpoint = progress.showing(endpoint, app.state) if route.path in progress.PATHS else endpoint
            app.router.routes[place] = LongRoute(app.state, endpoint=endpoint, **values)


def _completing(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap an endpoint so that it gets its body with all token IDs."""

    @wraps(call)
    async def completing(**values: Any) -> Any:
        context = _context()
        for value in values.values():
            if isinstance(value, BaseModel):
                complete(context, value)
        return await call(**values)

    return completing


def _context() -> RequestContext:
    context = current.get()
    assert context is not None, "the front gives every HTTP request a context"
    return context
