"""Chunks of progress come before a stream's own, and the stream ends as it would without them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import State
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive
from vllm.exceptions import VLLMValidationError

from ropeswitch.server.front.bodies import progress as module
from ropeswitch.server.front.bodies.progress import reporting
from ropeswitch.server.front.context import Entered, RequestContext, Ticket, current

ASKING = {"return_progress": True, "stream": True, "model": "m"}
ANSWER = ["data: a\n\n", "data: b\n\n"]


class RawRequest(Request):
    """One whose handler has named it."""

    def __init__(self, request_id: str = "cmpl-1") -> None:
        super().__init__({"type": "http"})
        self.state.request_metadata = State({"request_id": request_id})


class Prompt:
    """A prompt of ten tokens, of which two are cached, and of an answer that begins when its event is set."""

    def __init__(self, interval: float = 0, wait: float = 0.0) -> None:
        self.processed, self.begin, self.closed = 0, asyncio.Event(), False
        self.interval, self.wait = interval, wait
        self.parts = State(
            {"prefill_progress": self.progress, "status": State({"model": "served"}), "shows_cached": True}
        )

    async def stream(self, request_id: str = "cmpl-1", **changes: Any) -> AsyncGenerator[Any, None]:
        response = await reporting(self.endpoint, RawRequest(request_id), ASKING | changes, self.parts)
        iterator: AsyncGenerator[Any, None] = response.body_iterator
        return iterator

    async def progress(self, request_id: str) -> tuple[int, int, float | None]:
        assert request_id == "cmpl-1-0"
        await asyncio.sleep(self.wait)
        self.processed += 3
        return self.processed, 2, None if self.processed < 6 else (10 - self.processed) / 1000

    async def endpoint(self) -> StreamingResponse:
        stream = with_sse_keep_alive(self._stream(), self.interval)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _stream(self) -> AsyncGenerator[str, None]:
        try:
            await self.begin.wait()
            for chunk in ANSWER:
                yield chunk
        finally:
            self.closed = True


@pytest.fixture(autouse=True)
def in_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "SECONDS", 0.01)
    token = current.set(RequestContext(entered=Entered(tickets=[Ticket(b"", 0, 2, 20, "cmpl-1-0", 0.0)])))
    yield
    current.reset(token)


def in_loop(case: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return wraps(case)(lambda: asyncio.run(case()))


def parsed(chunk: str) -> Any:
    return json.loads(chunk.removeprefix("data: "))


@in_loop
async def test_a_stream_reports_progress_until_the_first_token() -> None:
    prompt = Prompt()
    stream = await prompt.stream()
    chunks = [parsed(await anext(stream)) for _ in range(3)]
    reports = [each["prompt_progress"] for each in chunks]
    assert [(each["total"], each["cache"], each["processed"], each["eta_ms"]) for each in reports] == [
        (10, 0, 0, None),
        (10, 2, 3, None),
        (10, 2, 6, 4),
    ]
    assert {(each["id"], each["object"], each["model"]) for each in chunks} == {("cmpl-1", "text_completion", "m")}
    prompt.begin.set()
    rest = [chunk async for chunk in stream]
    assert rest[-2:] == ANSWER and prompt.closed


@in_loop
async def test_a_stream_reports_progress_beside_comments_that_keep_the_stream_alive() -> None:
    prompt = Prompt(interval=0.002)
    stream = await prompt.stream("chatcmpl-1")
    # The first two reports and more come between comments, which are no first token.
    chunks = [await anext(stream) for _ in range(30)]
    reports = [parsed(chunk) for chunk in chunks if not chunk.startswith(":")]
    assert 2 <= len(reports) < 30
    assert [each["prompt_progress"]["processed"] for each in reports] == [3 * i for i in range(len(reports))]
    assert {each["object"] for each in reports} == {"chat.completion.chunk"}
    prompt.begin.set()
    assert [chunk async for chunk in stream][-2:] == ANSWER


@in_loop
async def test_a_stream_reports_progress_while_the_engine_is_slow_to_answer() -> None:
    """It answers between two steps, which may take longer than a proxy waits for a byte."""
    prompt = Prompt(interval=0.002, wait=60)
    stream = await prompt.stream()
    assert parsed(await anext(stream))["prompt_progress"]["processed"] == 0
    assert {await asyncio.wait_for(anext(stream), 5) for _ in range(3)} == {": keep-alive\n\n"}
    prompt.begin.set()
    assert [chunk async for chunk in stream if not chunk.startswith(":")] == ANSWER and prompt.closed


@in_loop
async def test_a_stream_reports_progress_of_the_served_model_and_without_cached_tokens_until_the_client_leaves() -> (
    None
):
    prompt = Prompt()
    prompt.parts.shows_cached = False
    stream = await prompt.stream(model=None)
    chunk = parsed(await anext(stream))
    assert chunk["model"] == "served" and set(chunk["prompt_progress"]) == {"total", "processed", "time_ms", "eta_ms"}
    await asyncio.sleep(0)
    await stream.aclose()
    assert prompt.closed


def test_an_error_and_a_stream_without_a_token_end_as_they_do() -> None:
    error, empty = JSONResponse({}, 404), StreamingResponse(each for each in [])

    async def reported(answer: Any) -> Any:
        async def endpoint() -> Any:
            return answer

        response = await reporting(endpoint, RawRequest(), ASKING, Prompt().parts)
        return response if response is error else [parsed(chunk) async for chunk in response.body_iterator]

    assert asyncio.run(reported(error)) is error
    assert all("prompt_progress" in chunk for chunk in asyncio.run(reported(empty)))


@pytest.mark.parametrize("changes", [{"return_progress": 1}, {"stream": False}, {"stream": "no"}])
def test_who_asks_wrongly_is_refused_before_the_engine_hears_of_it(changes: Any) -> None:
    async def endpoint() -> None:
        raise AssertionError("it was called")

    with pytest.raises(VLLMValidationError, match="return_progress"):
        asyncio.run(reporting(endpoint, RawRequest(), ASKING | changes, None))
