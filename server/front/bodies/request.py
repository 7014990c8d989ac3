"""Rebuilds the app's routes so that they read long bodies off the event loop, and check them before validation.

The routes also refuse invalid bodies (``body_errors.py``), report progress (``progress.py``), and keep the errors of their
handlers for the log.
"""

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import FormData

from ropeswitch.factors.errors import FieldError
from ropeswitch.model_patches.switch.config.settings import FORCED_SET, LADDER_POLICY
from ropeswitch.server.app.parts import ServerParts
from ropeswitch.server.front.bodies import progress
from ropeswitch.server.front.bodies.body_errors import TOGETHER, refusal_of, wrong_item
from ropeswitch.server.front.bodies.contents import extra_arguments, names_output_limit, refusal_of_values
from ropeswitch.server.front.bodies.parse import IDS, LONG, VALUES, completed, has_too_many_values, parse, sample
from ropeswitch.server.front.context import Asked, RequestContext, current
from ropeswitch.server.front.flags import CostLimits
from ropeswitch.server.front.limits.cost import answers_of, excess
from ropeswitch.server.front.limits.media import own_names
from ropeswitch.server.front.refusal import Refusal, RefusedError, invalid_body, no_room, shorten

# Bodies of more bytes are parsed on another thread than those of more than LONG, which need not wait for them.
VERY_LONG = 1 << 20
# Seconds after which a parsing thread hands the GIL to the event loop; Python's default is 0.005. The loop releases the GIL
# at every system call, and waits this long for it each time.
SWITCH_SECONDS = 0.0005

_long, _very_long = (ThreadPoolExecutor(1, f"parse-{name}") for name in ("long", "very-long"))


class LongRequest(Request):
    """A request whose long body is read off the event loop; upstream's routes use it like any Starlette request."""

    parts: ServerParts
    context: RequestContext
    # Whether only the first token ID of a prompt is validated: a million take 40 ms, and the parser checks them.
    takes_samples: bool
    _size = 0

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives, and count it if it is long; 503 if its client's share of the memory is used up."""
        held, context = self.parts.front.held_bodies, self.context
        async for chunk in super().stream():
            self._size += len(chunk)
            more = self._size - context.held_bytes if self._size > LONG else 0
            if more > held.room(context.client):
                raise self._refused(no_room("held_bytes", "server_busy", held, "bytes of request bodies are in flight"))
            held.add(context.client, more)
            context.held_bytes += more
            yield chunk

    async def json(self) -> Any:
        """Return the body's values; 400 for a body that is not JSON, or has a value that no route accepts."""
        if not hasattr(self, "_json"):
            body = await self.body()
            read = partial(_read, body, self.parts.front.cost_limits, self.context.key)
            try:
                if len(body) <= LONG:
                    values, refusal = read()
                else:
                    thread = _long if len(body) <= VERY_LONG else _very_long
                    values, refusal = await asyncio.get_running_loop().run_in_executor(thread, read)
            except (ValueError, RecursionError) as error:
                strict = "which has no NaN, infinity or unpaired surrogate"
                raise self._refused(invalid_body(f"The body is not valid JSON ({strict}): {error}")) from error
            self._check(refusal)
            if isinstance(values, dict):
                self._ask(values)
                if isinstance(values.get("input"), list) and len(values["input"]) > TOGETHER:
                    route, loop = self.scope.get("route"), asyncio.get_running_loop()
                    self._check(await loop.run_in_executor(_long, wrong_item, route, values))
            self._json = values
        return self._json

    def _ask(self, values: dict[str, Any]) -> None:
        """Record what the body asks for, and replace the model name ``MODEL@SET`` by the model's."""
        # A route that does not read these arguments must not ignore them silently.
        arguments = extra_arguments(values)
        try:
            alias = self.parts.aliases.find(values.get("model"))
            self.parts.aliases.check(arguments.get(FORCED_SET), alias)
        except FieldError as error:
            raise self._refused(invalid_body(f"{error.field}: {error.reason}", error.field)) from error
        if alias is not None:
            values["model"] = alias.model
        found = ((name, sample(values.get(name))) for name in IDS if self.takes_samples)
        samples = {name: first for name, first in found if first is not None}
        self.context.asked = Asked(
            factor_set=arguments.get(FORCED_SET),
            policy=arguments.get(LADDER_POLICY),
            alias=alias,
            limited=names_output_limit(values),
            beams=answers_of(values.get("n")) if values.get("use_beam_search") is True else 0,
            in_steps=values.get("use_beam_search") is True or self.url.path.endswith("/responses"),
            token_ids={name: values[name] for name in samples},
        )
        values |= samples

    async def form(self, **limits: Any) -> FormData:  # type: ignore[override]
        """Return the fields of a form, only for ``await``; 400 for one that would start too many sequences."""
        values = await super().form(**limits)
        self._check(excess(values, self.parts.front.cost_limits))
        return values

    def _check(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            raise self._refused(refusal)

    def _refused(self, refusal: Refusal) -> RefusedError:
        return self.context.refuse(RefusedError(refusal))


def _read(body: bytes, limits: CostLimits, key: bytes | None) -> tuple[Any, Refusal | None]:
    """Return a body's values, and their refusal or None."""
    if has_too_many_values(body):
        return None, invalid_body(f"Input should have at most {VALUES} values other than whole numbers")
    values = parse(body)
    refusal = refusal_of_values(values) or excess(values, limits)
    if key is not None and refusal is None and isinstance(values, dict):
        own_names(values, key)
    return values, refusal


class LongRoute(APIRoute):
    """A route that reads its request as a :class:`LongRequest`, as FastAPI documents for custom request classes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, given a :class:`LongRequest`."""
        handler = super().get_route_handler()
        # An endpoint that reads its body itself gets all of it.
        takes_samples = self.body_field is not None and inspect.iscoroutinefunction(self.endpoint)

        async def handle(request: Request) -> Response:
            long = LongRequest(request.scope, request.receive)
            long.parts, long.context, long.takes_samples = request.app.state.ropeswitch, _context(), takes_samples
            try:
                return await handler(long)
            except Exception as error:
                if (refusal := refusal_of(error)) is not None:
                    raise long.context.refuse(RefusedError(refusal)) from error
                long.context.error = shorten(error)
                raise

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
                endpoint = _completing(endpoint, route.path in progress.PATHS)
            app.router.routes[place] = LongRoute(endpoint=endpoint, **values)


def _completing(call: Callable[..., Awaitable[Any]], streams: bool) -> Callable[..., Awaitable[Any]]:
    """Wrap an endpoint so that it gets its body with all token IDs; if it ``streams``, its streams may report progress."""

    @wraps(call)
    async def completing(**values: Any) -> Any:
        kept = _context().asked.token_ids
        for model in values.values():
            for name in kept if isinstance(model, BaseModel) else ():
                # A model that ignores unknown fields has no place for it.
                if name in type(model).model_fields or name in (model.model_extra or ()):
                    setattr(model, name, completed(kept[name], getattr(model, name)))
        if streams:
            request = next(each for each in values.values() if isinstance(each, LongRequest))
            body = await request.json()
            if isinstance(body, dict) and progress.FIELD in body:
                return await progress.reporting(partial(call, **values), request, body, request.parts)
        return await call(**values)

    return completing


def _context() -> RequestContext:
    context = current.get()
    assert context is not None, "the front gives every HTTP request a context"
    return context
