"""An HTTP request whose JSON body may be long."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request
from starlette.datastructures import FormData

from ropeswitch.server.context import RequestContext
from ropeswitch.server.front.refusal import RefusedError, bodies_too_many
from ropeswitch.server.front.state import HeldBodies
from ropeswitch.server.ingest.fan_out import find_excess
from ropeswitch.server.ingest.parse import PROMPTS, parse
from ropeswitch.server.ingest.token_ids import completed, sample
from ropeswitch.server.prompt_set import asked_policy, asked_set, asks_for_no_token, names_output_limit

# Bodies of more than LONG bytes are parsed on a thread, and those of more than VERY_LONG on another one, so that the former
# need not wait for the latter. A shorter body takes less than a millisecond.
LONG = 1 << 16
VERY_LONG = 1 << 20

T = TypeVar("T")
R = TypeVar("R")

_long, _very_long = (ThreadPoolExecutor(1, f"parse-{name}") for name in ("long", "very-long"))


async def _run(size: int, function: Callable[[T], R], argument: T) -> R:
    """Call a function whose time grows with the body's size, on a thread where no smaller body waits for it."""
    if size <= LONG:
        return function(argument)
    thread = _long if size <= VERY_LONG else _very_long
    return await asyncio.get_running_loop().run_in_executor(thread, function, argument)


class LongRequest(Request):
    """A request whose long body is read off the event loop; upstream's routes use it like any Starlette request.

    Attributes:
        held: Counts the memory of its body; set before the body is read, like the other attributes.
        most_sequences: Maximum sequences that the body may start.
        context: The request's context.
        takes_samples: Whether its token IDs are kept out of validation, which takes 40 ms for a million: only the first is
            validated, and :func:`complete` puts all of them back. The parser has checked each.
    """

    held: HeldBodies
    most_sequences: int
    context: RequestContext
    takes_samples = False

    async def body(self) -> bytes:
        """Return the whole body, as ``starlette.requests.Request.body``.

        Raises:
            RefusedError: 503, if bodies in flight would exceed their memory limit.
        """
        if not hasattr(self, "_body"):
            self._size = 0
            chunks: list[bytes] = []
            async for chunk in self.stream():
                self._hold(len(chunk))
                chunks.append(chunk)
            # Joining a long body takes milliseconds, and ten may arrive at the same time.
            self._body = await _run(self._size, b"".join, chunks)
        return self._body

    async def json(self) -> Any:
        """Return the body's values, as ``starlette.requests.Request.json``.

        Raises:
            json.JSONDecodeError: for a body that is not JSON; FastAPI answers this and any other error.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            parsed = await _run(len(body), parse, body)
            values = parsed.values
            self.context.fault = parsed.fault or find_excess(values, self.most_sequences)
            # A route that does not read the field must not ignore it silently.
            self.context.asked = asked_set(values)
            self.context.model = values.get("model") if isinstance(values, dict) else None
            self.context.asked_policy = asked_policy(values)
            self.context.limited = names_output_limit(values)
            self.context.limited_to_none = asks_for_no_token(values)
            if self.takes_samples and isinstance(values, dict):
                samples = {name: first for name in PROMPTS if (first := sample(values.get(name))) is not None}
                self.context.token_ids = {name: values[name] for name in samples}
                values |= samples
            self._json = values
        return self._json

    async def form(self, **limits: Any) -> FormData:  # type: ignore[override]
        """Return the fields of a form, as ``starlette.requests.Request.form``; only for ``await``."""
        values = await super().form(**limits)
        self.context.fault = find_excess(values, self.most_sequences)
        return values

    def release(self) -> None:
        """Release this body's share of the memory limit, when the request's handler is done."""
        self.held.bytes -= getattr(self, "_size", 0)

    def _hold(self, count: int) -> None:
        if self.held.bytes + count > self.held.limit:
            raise self.context.refuse(RefusedError(bodies_too_many(self.held.limit)))
        self.held.bytes += count
        self._size += count


def complete(context: RequestContext, model: Any) -> None:
    """Put a request's token IDs back into its validated body, a pydantic model."""
    for name, value in context.token_ids.items():
        # A model that ignores unknown fields has no place for it.
        if name in type(model).model_fields or name in (model.model_extra or ()):
            setattr(model, name, completed(value, getattr(model, name)))
