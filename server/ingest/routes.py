"""Makes the app's routes read requests as :class:`~ropeswitch.server.ingest.request.LongRequest` and report progress."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute, request_response
from pydantic import BaseModel
from starlette.datastructures import State

from ropeswitch.server.context import RequestContext, current
from ropeswitch.server.ingest import progress
from ropeswitch.server.ingest.request import LongRequest, complete

# Seconds after which a parsing thread hands the GIL to the event loop; Python's default is 0.005. The loop releases the GIL
# at every system call, and waits this long for it each time.
SWITCH_SECONDS = 0.0005

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def read_long_bodies(app: FastAPI) -> None:
    """Make every POST route of an app read its body as a :class:`LongRequest`, with a custom handler per route.

    Args:
        app: The app; once it serves, its state has the :class:`~ropeswitch.server.parts.ServerParts` as ``ropeswitch``.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    for route in app.routes:
        if isinstance(route, APIRoute) and "POST" in route.methods:
            _change(route, app.state)


def _change(route: APIRoute, state: State) -> None:
    call = route.dependant.call
    # Other endpoints read the body themselves, and get all of it.
    samples = False
    if call is not None and inspect.iscoroutinefunction(call):
        if route.body_field is not None:
            call, samples = _completing(call), True
        route.dependant.call = progress.showing(call, state) if route.path in progress.PATHS else call
    handler: Handler = route.get_route_handler()

    async def handle(request: Request) -> Response:
        long = LongRequest(request.scope, request.receive, request._send)
        front = state.ropeswitch.front
        long.held, long.most_sequences = front.held_bodies, front.max_sequences
        long.context, long.takes_samples = _context(), samples
        try:
            return await handler(long)
        finally:
            long.release()

    route.app = request_response(handle)


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
