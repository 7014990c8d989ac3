"""Streams that report the progress of their prompt, for clients that send ``"return_progress": true``.

A chunk without choices reports it when the stream begins, with nothing processed, and every second until its first token.
The fields are those of llama.cpp's server, where the flag comes from: ``prompt_progress`` with ``total``, ``cache`` and
``processed`` tokens, of which the second are among the third, and ``time_ms``.

The chunks are put into the response of a route (``routes.py``), outside vLLM's handlers and its keep-alive comments.
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

from ropeswitch.server import vllm_adapter
from ropeswitch.server.context import Ticket, current

FIELD = "return_progress"
SECONDS = 1.0
# Routes with such streams. The last of them reads its body by itself, and calls the others' endpoints.
INVOCATIONS = "/invocations"
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", INVOCATIONS})

Progress = Callable[[str], Awaitable[tuple[int, int]]]
Endpoint = Callable[..., Awaitable[Any]]

_BOOL = TypeAdapter(bool)
# The `object` of a stream's chunks, by the prefix of its ID.
_KINDS = {"chatcmpl": "chat.completion.chunk", "cmpl": "text_completion"}


def showing(endpoint: Endpoint, state: State) -> Endpoint:
    """An endpoint whose streams report their progress.

    Args:
        endpoint: Of one of :data:`PATHS`, with its arguments by name.
        state: The app's, which has the :class:`~ropeswitch.server.parts.ServerParts` as ``ropeswitch`` when it serves.
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
                # A route that reads its body by itself may have put an adapter's name in its place, or none.
                model = fields.get("model") or model or state.ropeswitch.status.model
                head = {"id": request_id, "object": kind, "created": int(time.time()), "model": model, "choices": []}
                reports = _Reports(head, context.tickets, state.ropeswitch.prefill_progress)
                response.body_iterator = _interleaved(response.body_iterator, reports)
        return response

    return show


async def _json(request: Request) -> dict[str, Any]:
    """The fields of a body; none where it is no JSON object, which the endpoint answers."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _is_true(value: Any) -> bool:
    """A field's value as upstream's model reads it; what it refuses is no truth."""
    try:
        return _BOOL.validate_python(value)
    except ValidationError:
        return False


def asks(extra: dict[str, Any], *, stream: bool) -> bool:
    """Whether a request asks for progress.

    Args:
        extra: Its fields that upstream does not know.
        stream: Whether it is for a stream.

    Raises:
        vllm.exceptions.VLLMValidationError: answered with a 400, for a value that is no boolean, and without a stream.
    """
    value = extra.get(FIELD, False)
    if not isinstance(value, bool):
        raise vllm_adapter.validation_error(f"{FIELD}: {value!r:.100} must be true or false", FIELD)
    if value and not stream:
        raise vllm_adapter.validation_error(f"{FIELD}: only a stream reports progress; set stream to true", FIELD)
    return value


class _Reports:
    """Makes the chunks of one stream's progress; its time counts from here.

    Args:
        head: The fields that every chunk of the stream has.
        tickets: The stream's requests.
        progress: Returns the processed and cached tokens of a request ID, after asking the engine.
    """

    def __init__(self, head: dict[str, Any], tickets: Sequence[Ticket], progress: Progress) -> None:
        self._head = head
        self._tickets = tickets
        self._progress = progress
        self._started = time.monotonic()

    def first(self) -> str:
        """The chunk at the stream's begin, which asks no engine: its answer may come after the first token."""
        return self._chunk([])

    async def later(self) -> str:
        """The chunk some seconds from now."""
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
                # An engine answers between two steps, which may be long: its answer must not hold up a comment.
                await asyncio.wait({following, report}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    if (chunk := following.result()) is None or not chunk.startswith(":"):
                        break
                    # A comment, with which vLLM keeps a silent stream alive, is no token.
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
    """The next chunk; None where the stream ends."""
    return await anext(stream, None)
