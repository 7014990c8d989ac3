"""An HTTP request whose JSON body may be long."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request
from starlette.datastructures import FormData

from ropeswitch.factors.errors import FieldError
from ropeswitch.server.app.aliases import Aliases
from ropeswitch.server.front.bodies.body_errors import wrong_item
from ropeswitch.server.front.bodies.fan_out import find_excess
from ropeswitch.server.front.bodies.faults import Fault, field_path
from ropeswitch.server.front.bodies.parse import PROMPTS, parse
from ropeswitch.server.front.bodies.prompt_set import asked_policy, asked_set, names_output_limit, unknown_key
from ropeswitch.server.front.bodies.token_ids import completed, sample
from ropeswitch.server.front.context import Asked, RequestContext
from ropeswitch.server.front.refusal import Refusal, RefusedError, bodies_too_many, invalid_body
from ropeswitch.server.front.state import HeldBodies

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
        aliases: The server's model names.
        takes_samples: Whether its token IDs are kept out of validation, which takes 40 ms for a million: only the first is
            validated, and :func:`complete` puts all of them back. The parser has checked each.
    """

    held: HeldBodies
    most_sequences: int
    context: RequestContext
    aliases: Aliases
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
            RefusedError: 400, for a body that is not JSON, or has a value that no route accepts.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                parsed = await _run(len(body), parse, body)
            except (ValueError, RecursionError) as error:
                raise self._refused(invalid_body(f"The body is not valid JSON: {error}")) from error
            values = parsed.values
            self._check(parsed.fault or find_excess(values, self.most_sequences) or unknown_key(values))
            field = getattr(self.scope.get("route"), "body_field", None)
            if field is not None and (refusal := wrong_item(field, values)) is not None:
                raise self._refused(refusal)
            if isinstance(values, dict):
                self._ask(values)
            self._json = values
        return self._json

    def _ask(self, values: dict[str, Any]) -> None:
        """Record what the body asks for, and replace the model name ``MODEL@SET`` by the model's."""
        # A route that does not read the field must not ignore it silently.
        factor_set = asked_set(values)
        try:
            alias = self.aliases.find(values.get("model"))
            self.aliases.check(factor_set, alias)
        except FieldError as error:
            raise self._refused(invalid_body(f"{error.field}: {error.reason}", error.field)) from error
        if alias is not None:
            values["model"] = alias.model
        found = ((name, sample(values.get(name))) for name in PROMPTS if self.takes_samples)
        samples = {name: first for name, first in found if first is not None}
        self.context.asked = Asked(
            factor_set=factor_set,
            policy=asked_policy(values),
            alias=alias,
            limited=names_output_limit(values),
            in_steps=values.get("use_beam_search") is True or self.url.path.endswith("/responses"),
            token_ids={name: values[name] for name in samples},
        )
        values |= samples

    async def form(self, **limits: Any) -> FormData:  # type: ignore[override]
        """Return the fields of a form, as ``starlette.requests.Request.form``; only for ``await``.

        Raises:
            RefusedError: 400, for one that would start too many sequences.
        """
        values = await super().form(**limits)
        self._check(find_excess(values, self.most_sequences))
        return values

    def release(self) -> None:
        """Release this body's share of the memory limit, when the request's handler is done."""
        self.held.bytes -= getattr(self, "_size", 0)

    def _hold(self, count: int) -> None:
        if self.held.bytes + count > self.held.limit:
            raise self._refused(bodies_too_many(self.held.limit))
        self.held.bytes += count
        self._size += count

    def _check(self, fault: Fault | None) -> None:
        if fault is not None:
            path = field_path(fault.place)
            raise self._refused(invalid_body(f"{path or 'body'}: {fault.message}", path or None))

    def _refused(self, refusal: Refusal) -> RefusedError:
        return self.context.refuse(RefusedError(refusal))


def complete(context: RequestContext, model: Any) -> None:
    """Put a request's token IDs back into its validated body, a pydantic model."""
    for name, value in context.asked.token_ids.items():
        # A model that ignores unknown fields has no place for it.
        if name in type(model).model_fields or name in (model.model_extra or ()):
            setattr(model, name, completed(value, getattr(model, name)))
