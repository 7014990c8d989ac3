"""Streams that tell how far their prompt is, for clients that ask with ``"return_progress": true``.

A chunk without choices says so when the stream begins and every second until its first token. The fields are those of
llama.cpp's server, where the flag comes from: ``prompt_progress`` with ``total``, ``cache`` and ``processed`` tokens, of
which the second are among the third, and ``time_ms``.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from ropeswitch.server import vllm_adapter
from ropeswitch.server.context import Ticket, current

FIELD = "return_progress"
SECONDS = 1.0

Progress = Callable[[str], Awaitable[tuple[int, int]]]
Handler = Callable[..., Awaitable[Any]]

# Handlers by their name in the app's state: the method that makes a stream, and what its chunks call themselves.
_STREAMS = (
    ("openai_serving_chat", "create_chat_completion", "chat.completion.chunk"),
    ("openai_serving_completion", "create_completion", "text_completion"),
)


def show_progress(state: Any, progress: Progress) -> None:
    """Wrap the handlers of an app that make streams.

    Args:
        state: The app's, with vLLM's handlers in it.
        progress: :func:`~ropeswitch.server.vllm_adapter.prefill_progress`.
    """
    for name, method, kind in _STREAMS:
        # Absent where the model does not generate.
        if (handler := getattr(state, name, None)) is not None:
            setattr(handler, method, _showing(getattr(handler, method), kind, progress))


def _showing(upstream: Handler, kind: str, progress: Progress) -> Handler:
    async def create(request: Any, raw_request: Any = None) -> Any:
        if not asks(request.model_extra or {}, stream=request.stream):
            return await upstream(request, raw_request)
        result = await upstream(request, raw_request)
        context = current.get()
        if not isinstance(result, AsyncGenerator) or context is None:
            return result
        head = {
            "id": raw_request.state.request_metadata.request_id,
            "object": kind,
            "created": int(time.time()),
            "model": request.model,
            "choices": [],
        }
        return _interleaved(result, head, _telling(context.tickets, progress))

    return create


def asks(extra: dict[str, Any], *, stream: bool | None) -> bool:
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
        raise vllm_adapter.validation_error(f"{FIELD}: only a stream can tell its progress; set stream to true", FIELD)
    return value


def _telling(tickets: Sequence[Ticket], progress: Progress) -> Callable[[], Awaitable[dict[str, int]]]:
    started = time.monotonic()
    total = sum(ticket.tokens // ticket.requests for ticket in tickets)

    async def tell() -> dict[str, int]:
        found = [await progress(ticket.request_id) for ticket in tickets if ticket.request_id is not None]
        return {
            "total": total,
            "cache": sum(cached for _, cached in found),
            "processed": sum(processed for processed, _ in found),
            "time_ms": round((time.monotonic() - started) * 1000),
        }

    return tell


async def _interleaved(
    stream: AsyncGenerator[str, None], head: dict[str, Any], tell: Callable[[], Awaitable[dict[str, int]]]
) -> AsyncGenerator[str, None]:
    async with aclosing(stream):
        first = asyncio.ensure_future(anext(stream))
        try:
            while not first.done():
                yield f"data: {json.dumps({**head, 'prompt_progress': await tell()})}\n\n"
                await asyncio.wait({first}, timeout=SECONDS)
            yield await first
        except StopAsyncIteration:
            return
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        async for chunk in stream:
            yield chunk
