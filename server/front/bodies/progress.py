"""Makes streams report the progress of their prompt, for clients that send ``"return_progress": true``.

A chunk without choices reports it when the stream begins, with nothing processed, and every second until its first token.
The flag and the fields are those of llama.cpp's server: ``prompt_progress`` with ``time_ms`` and the tokens ``total``,
``cache`` and ``processed``, which includes ``cache``. ``eta_ms`` is ours.

The chunks are inserted into the response of a route (``request.py``), outside vLLM's handlers and its keep-alive comments.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.front.context import current

FIELD = "return_progress"
SECONDS = 1.0
# Routes with such streams. ``/invocations`` reads its body itself and calls the other routes' endpoints.
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/invocations"})


# Asks the engine for a request's processed and cached tokens, and the predicted seconds of the others, or None.
Progress = Callable[[str], Awaitable[tuple[int, int, float | None]]]


async def reporting(call: Callable[[], Awaitable[Any]], request: Request, body: Mapping[str, Any], parts: Any) -> Any:
    """Return the response of an endpoint of :data:`PATHS`; its stream reports progress if the body asks for it.

    Args:
        call: The endpoint, which gives the request an ID.
        request: The request.
        body: Its JSON, with :data:`FIELD`.
        parts: :class:`~ropeswitch.server.app.parts.ServerParts`.

    Raises:
        vllm.exceptions.VLLMValidationError: for a value that is not a boolean, or without a stream; becomes a 400.
    """
    asked = body[FIELD]
    if not isinstance(asked, bool):
        raise vllm_adapter.validation_error(f"{FIELD}: {asked!r:.100} must be true or false", FIELD)
    if asked and body.get("stream") is not True:
        raise vllm_adapter.validation_error(f"{FIELD}: only streams report progress; set stream to true", FIELD)
    response, context = await call(), current.get()
    if not asked or not isinstance(response, StreamingResponse) or context is None:
        return response
    request_id = request.state.request_metadata.request_id
    kind = "chat.completion.chunk" if request_id.startswith("chatcmpl-") else "text_completion"
    model = body.get("model") or parts.status.model
    head = {"id": request_id, "object": kind, "created": int(time.time()), "model": model, "choices": []}
    tickets, started = context.entered.tickets, time.monotonic()

    def chunk(found: Sequence[tuple[int, int, float | None]]) -> str:
        seconds = [left for _, _, left in found if left is not None]
        progress = {
            "total": sum(ticket.tokens // ticket.requests for ticket in tickets),
            "cache": sum(cached for _, cached, _ in found),
            "processed": sum(processed for processed, _, _ in found),
            "time_ms": round((time.monotonic() - started) * 1000),
            "eta_ms": round(sum(seconds) * 1000) if seconds and len(seconds) == len(found) else None,
        }
        if not parts.shows_cached:
            del progress["cache"]
        return f"data: {json.dumps({**head, 'prompt_progress': progress})}\n\n"

    async def later() -> str:
        await asyncio.sleep(SECONDS)
        return chunk([await parts.prefill_progress(ticket.request_id) for ticket in tickets])

    # The first chunk asks no engine, whose reply may come after the first token.
    response.body_iterator = _interleaved(response.body_iterator, chunk([]), later)
    return response


async def _interleaved(
    stream: AsyncIterable[Any], first: str, later: Callable[[], Awaitable[str]]
) -> AsyncGenerator[Any, None]:
    assert isinstance(stream, AsyncGenerator), "vLLM's streams are generators"
    chunk: Any = ""
    async with aclosing(stream):
        following, report = asyncio.ensure_future(anext(stream, None)), asyncio.ensure_future(later())
        try:
            yield first
            while True:
                # An engine replies between two steps, which may be long: waiting for it must not delay a comment.
                await asyncio.wait({following, report}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    if (chunk := following.result()) is None or not chunk.startswith(":"):
                        break
                    # One of vLLM's keep-alive comments, not a token.
                    yield chunk
                    following = asyncio.ensure_future(anext(stream, None))
                if report.done():
                    yield report.result()
                    report = asyncio.ensure_future(later())
        finally:
            following.cancel()
            report.cancel()
            await asyncio.gather(following, report, return_exceptions=True)
        if chunk is not None:
            yield chunk
        async for chunk in stream:
            yield chunk
