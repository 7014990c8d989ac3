"""Chunks of progress come before a stream's own, and the stream ends as it would without them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import State
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive

from ropeswitch.server.front.bodies import progress as module
from ropeswitch.server.front.bodies.progress import reporting
from ropeswitch.server.front.context import Entered, RequestContext, Ticket, current

ASKING = {"return_progress": True, "stream": True, "model": "m"}
ANSWER = ["data: a\n\n", "data: b\n\n"]


def reported(endpoint: Any, parts: Any = None, request_id: str = "cmpl-1", **changes: Any) -> Any:
    """The response of an endpoint whose handler has named the request."""
    request: Any = State({"state": State({"request_metadata": State({"request_id": request_id})})})
    return reporting(endpoint, request, ASKING | changes, parts)


class Prompt:
    """Two prompts of ten tokens, of which two are cached, and an answer that begins when its event is set."""

    def __init__(self, wait: float = 0.0, *, shows_cached: bool = True) -> None:
        self.processed, self.begin, self.closed, self.wait = 0, asyncio.Event(), False, wait
        status = State({"model": "served"})
        self.parts = State({"prefill_progress": self.progress, "status": status, "shows_cached": shows_cached})

    async def stream(self, **changes: Any) -> AsyncGenerator[Any, None]:
        response = await reported(self.endpoint, self.parts, **changes)
        iterator: AsyncGenerator[Any, None] = response.body_iterator
        return iterator

    async def progress(self, request_id: str) -> tuple[int, int, float | None]:
        await asyncio.sleep(self.wait)
        if request_id == "cmpl-1-1":
            return 9, 0, 0.001
        self.processed += 3
        return self.processed, 2, None if self.processed < 6 else (10 - self.processed) / 1000

    async def endpoint(self) -> StreamingResponse:
        return StreamingResponse(with_sse_keep_alive(self._stream(), 0.002))

    async def _stream(self) -> AsyncGenerator[str, None]:
        try:
            await self.begin.wait()
            for chunk in ANSWER:
                yield chunk
        finally:
            self.closed = True


@pytest.fixture(autouse=True)
def in_flight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "SECONDS", 0.01)
    tickets = [Ticket(b"", 0, 2, 20, "cmpl-1-0", 0.0), Ticket(b"", 0, 1, 10, "cmpl-1-1", 0.0)]
    token = current.set(RequestContext(entered=Entered(tickets=tickets)))
    yield
    current.reset(token)


def in_loop(case: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return wraps(case)(lambda: asyncio.run(case()))


def parsed(chunk: str) -> Any:
    return json.loads(chunk.removeprefix("data: "))


@in_loop
async def test_a_stream_reports_progress_beside_comments_and_while_the_engine_is_slow_to_answer() -> None:
    """Comments keep the stream alive; the engine answers between two steps, which may take long."""
    for wait in (0, 60):
        prompt = Prompt(wait)
        stream = await prompt.stream(request_id="chatcmpl-1")
        chunks = [await asyncio.wait_for(anext(stream), 5) for _ in range(40)]
        reports = [parsed(chunk) for chunk in chunks if not chunk.startswith(":")]
        assert 3 <= len(reports) < 40 if wait == 0 else len(reports) == 1
        progress = [each["prompt_progress"] for each in reports]
        found = [(each["total"], each["cache"], each["processed"], each["eta_ms"]) for each in progress]
        assert found[:3] == [(20, 0, 0, None), (20, 2, 12, None), (20, 2, 15, 5)][: len(found)]
        assert {(each["id"], each["model"]) for each in reports} == {("chatcmpl-1", "m")}
        prompt.begin.set()
        assert [chunk async for chunk in stream if not chunk.startswith(":")][-2:] == ANSWER and prompt.closed


@in_loop
async def test_a_stream_hides_cached_tokens_where_it_must_and_ends_when_its_client_leaves() -> None:
    prompt = Prompt(shows_cached=False)
    stream = await prompt.stream(model=None)
    chunk = parsed(await anext(stream))
    assert chunk["model"] == "served" and set(chunk["prompt_progress"]) == {"total", "processed", "time_ms", "eta_ms"}
    await asyncio.sleep(0)
    await stream.aclose()
    assert prompt.closed


@in_loop
async def test_an_error_and_a_stream_without_a_token_end_as_they_do() -> None:
    for answer in (JSONResponse({}, 404), StreamingResponse(iter(()))):

        async def endpoint(answer: Any = answer) -> Any:
            return answer

        response = await reported(endpoint, Prompt().parts)
        assert response == answer
        if answer.status_code == 200:
            assert all(["prompt_progress" in chunk async for chunk in response.body_iterator])
