"""Makes streams report the progress of their prompt, for clients that send ``"return_progress": true``.

A chunk without choices reports it when the stream begins, with nothing processed, and every second until its first token.
The flag and the fields are those of llama.cpp's server: ``prompt_progress`` with ``time_ms`` and the tokens ``total``,
``cache`` and ``processed``, which includes ``cache``.

The chunks are inserted into the response of a route (``routes.py``), outside vLLM's handlers and its keep-alive comments.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import wraps
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.datastructures import State

from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.front.context import Ticket, current

FIELD = "return_progress"
SECONDS = 1.0
# Routes with such streams. ``/invocations`` reads its body itself and calls the other routes' endpoints.
INVOCATIONS = "/invocations"
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", INVOCATIONS})

Progress = Callable[[str], Awaitable[tuple[int, int]]]
Endpoint = Callable[..., Awaitable[Any]]

_BOOL = TypeAdapter(bool)
# The `object` of a stream's chunks, by the prefix of its ID.
_KINDS = {"chatcmpl": "chat.completion.chunk", "cmpl": "text_completion"}


def showing(endpoint: Endpoint, state: State) -> Endpoint:
    """Wrap an endpoint so that its streams report their progress.

    Args:
        endpoint: The endpoint of one of :data:`PATHS`, called with keyword arguments.
        state: The app's state, with the :class:`~ropeswitch.server.app.parts.ServerParts` as ``ropeswitch`` once it serves.
    """

    @wraps(endpoint)
    async def show(**values: Any) -> Any:
        raw_request = next(each for each in values.values() if isinstance(each, Request))
        body = next((each for each in values.values() if isinstance(each, BaseModel)), None)
        fields = await _json(raw_request) if body is None else body.model_extra or {}
        stream, model = ((fields if body is None else vars(body)).get(name) for name in ("stream", "model"))
        asked = asks(fields, stream=_is_true(stream))
        response = await endpoint(**values)
        context = current.get()
        if asked and isinstance(response, StreamingResponse) and context is not None:
            request_id = raw_request.state.request_metadata.request_id
            if (kind := _KINDS.get(request_id.partition("-")[0])) is not None:
                # A route that reads its body itself may have replaced the name with an adapter's, or may have none.
                model = fields.get("model") or model or state.ropeswitch.status.model
                head = {"id": request_id, "object": kind, "created": int(time.time()), "model": model, "choices": []}
                reports = _Reports(head, context.entered.tickets, state.ropeswitch.prefill_progress)
                response.body_iterator = _interleaved(response.body_iterator, reports)
        return response

    return show


async def _json(request: Request) -> dict[str, Any]:
    """Return the fields of a body; empty if it is not a JSON object, which the endpoint then rejects."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _is_true(value: Any) -> bool:
    """Whether upstream's model reads a field's value as true; a value that it rejects is not."""
    try:
        return _BOOL.validate_python(value)
    except ValidationError:
        return False


def asks(extra: dict[str, Any], *, stream: bool) -> bool:
    """Whether a request asks for progress.

    Args:
        extra: Its fields that upstream does not know.
        stream: Whether it asks for a stream.

    Raises:
        vllm.exceptions.VLLMValidationError: for a value that is not a boolean, or without a stream; becomes a 400.
    """
    value = extra.get(FIELD, False)
    if not isinstance(value, bool):
        raise vllm_adapter.validation_error(f"{FIELD}: {value!r:.100} must be true or false", FIELD)
    if value and not stream:
        raise vllm_adapter.validation_error(f"{FIELD}: only streams report progress; set stream to true", FIELD)
    return value


class _Reports:
    """Makes the progress chunks of one stream; ``time_ms`` counts from its creation.

    Args:
        head: The fields that every chunk of the stream has.
        tickets: The stream's requests.
        progress: Asks the engine for the processed and the cached tokens of a request ID.
    """

    def __init__(self, head: dict[str, Any], tickets: Sequence[Ticket], progress: Progress) -> None:
        self._head = head
        self._tickets = tickets
        self._progress = progress
        self._started = time.monotonic()

    def first(self) -> str:
        """Return the stream's first chunk. It asks no engine, whose reply may come after the first token."""
        return self._chunk([])

    async def later(self) -> str:
        """Wait :data:`SECONDS`, then return the next chunk."""
        await asyncio.sleep(SECONDS)
        requests = [ticket.request_id for ticket in self._tickets if ticket.request_id is not None]
        return self._chunk([await self._progress(request_id) for request_id in requests])

    def _chunk(self, found: Sequence[tuple[int, int]]) -> str:
        progress = {
            "total": sum(ticket.tokens // ticket.requests for ticket in self._tickets),
            "cache": sum(cached for _, cached in found),
            "processed": sum(processed for processed, _ in found),
            "time_ms": round((time.monotonic() - self._started) * 1000),
        }
        return f"data: {json.dumps({**self._head, 'prompt_progress': progress})}\n\n"


async def _interleaved(stream: AsyncIterable[Any], reports: _Reports) -> AsyncGenerator[Any, None]:
    assert isinstance(stream, AsyncGenerator), "vLLM's streams are generators"
    chunk: Any = ""
    async with aclosing(stream):
        following, report = asyncio.ensure_future(_next(stream)), asyncio.ensure_future(reports.later())
        try:
            yield reports.first()
            while True:
                # An engine replies between two steps, which may be long: waiting for it must not delay a comment.
                await asyncio.wait({following, report}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    if (chunk := following.result()) is None or not chunk.startswith(":"):
                        break
                    # One of vLLM's keep-alive comments, not a token.
                    yield chunk
                    following = asyncio.ensure_future(_next(stream))
                if report.done():
                    yield report.result()
                    report = asyncio.ensure_future(reports.later())
        finally:
            following.cancel()
            report.cancel()
            await asyncio.gather(following, report, return_exceptions=True)
        if chunk is not None:
            yield chunk
        async for chunk in stream:
            yield chunk


async def _next(stream: AsyncGenerator[Any, None]) -> Any:
    """Return the next chunk; None at the end of the stream."""
    return await anext(stream, None)
