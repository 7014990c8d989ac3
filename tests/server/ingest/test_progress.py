"""Chunks of progress come before a stream's own, and the stream ends as it would without them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
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


class RawRequest(Request):
    """One whose handler has named it."""

    def __init__(self, request_id: str = "cmpl-1") -> None:
        super().__init__({"type": "http"})
        self.state.request_metadata = State({"request_id": request_id})


class Prompt:
    """A prompt of ten tokens, of which two are cached, and of an answer that begins when its event is set."""

    def __init__(self, interval: float = 0) -> None:
        self.processed, self.begin, self.closed, self.interval = 0, asyncio.Event(), False, interval
        self.parts = State(
            {"prefill_progress": self.progress, "status": State({"model": "served"}), "shows_cached": True}
        )
        self.wait = 0.0

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
            for chunk in ("data: a\n\n", "data: b\n\n"):
                yield chunk
        finally:
            self.closed = True


@pytest.fixture(autouse=True)
def in_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "SECONDS", 0.01)
    token = current.set(RequestContext(entered=Entered(tickets=[Ticket(b"", 0, 2, 20, "cmpl-1-0", 0.0)])))
    yield
    current.reset(token)


def parsed(chunk: str) -> Any:
    return json.loads(chunk.removeprefix("data: "))


def test_progress_without_cached_tokens_where_answers_do_not_tell_them() -> None:
    async def check() -> None:
        prompt = Prompt()
        prompt.parts.shows_cached = False
        stream = await prompt.stream()
        progress = parsed(await anext(stream))["prompt_progress"]
        assert set(progress) == {"total", "processed", "time_ms", "eta_ms"}
        await stream.aclose()

    asyncio.run(check())


def test_progress_until_the_first_token() -> None:
    async def check() -> None:
        prompt = Prompt()
        stream = await prompt.stream()
        chunks = [parsed(await anext(stream)) for _ in range(3)]
        reports = [each["prompt_progress"] for each in chunks]
        assert [(each["total"], each["cache"], each["processed"], each["eta_ms"]) for each in reports] == [
            (10, 0, 0, None),
            (10, 2, 3, None),
            (10, 2, 6, 4),
        ]
        heads = {(each["id"], each["object"], each["model"], *each["choices"]) for each in chunks}
        assert heads == {("cmpl-1", "text_completion", "m")}
        prompt.begin.set()
        rest = [chunk async for chunk in stream]
        assert rest[-2:] == ["data: a\n\n", "data: b\n\n"] and prompt.closed

    asyncio.run(check())


def test_a_comment_that_keeps_the_stream_alive_is_no_first_token() -> None:
    async def check() -> None:
        prompt = Prompt(interval=0.002)
        stream = await prompt.stream("chatcmpl-1")
        # The first two reports and more come between comments.
        chunks = [await anext(stream) for _ in range(30)]
        reports = [parsed(chunk) for chunk in chunks if not chunk.startswith(":")]
        assert 2 <= len(reports) < 30
        assert [each["prompt_progress"]["processed"] for each in reports] == [3 * i for i in range(len(reports))]
        assert {each["object"] for each in reports} == {"chat.completion.chunk"}
        prompt.begin.set()
        assert [chunk async for chunk in stream][-2:] == ["data: a\n\n", "data: b\n\n"]

    asyncio.run(check())


def test_an_engine_that_is_slow_to_answer_holds_no_comment_up() -> None:
    """It answers between two steps, which may take longer than a proxy waits for a byte."""

    async def check() -> None:
        prompt = Prompt(interval=0.002)
        prompt.wait = 60
        stream = await prompt.stream()
        assert parsed(await anext(stream))["prompt_progress"]["processed"] == 0
        assert {await asyncio.wait_for(anext(stream), 5) for _ in range(3)} == {": keep-alive\n\n"}
        prompt.begin.set()
        rest = [chunk async for chunk in stream if not chunk.startswith(":")]
        assert rest == ["data: a\n\n", "data: b\n\n"] and prompt.closed

    asyncio.run(check())


def test_a_request_that_names_no_model_reports_the_served_one() -> None:
    async def check() -> None:
        prompt = Prompt()
        stream = await prompt.stream(model=None)
        assert parsed(await anext(stream))["model"] == "served"
        await stream.aclose()

    asyncio.run(check())


def test_a_client_that_leaves_ends_the_stream() -> None:
    async def check() -> None:
        prompt = Prompt(interval=60)
        stream = await prompt.stream()
        await anext(stream)
        await asyncio.sleep(0)
        await stream.aclose()
        assert prompt.closed

    asyncio.run(check())


def test_a_stream_that_ends_without_a_token() -> None:
    async def empty() -> StreamingResponse:
        async def nothing() -> AsyncGenerator[str, None]:
            await asyncio.sleep(0)
            return
            yield

        return StreamingResponse(nothing())

    async def check() -> None:
        response = await reporting(empty, RawRequest(), ASKING, Prompt().parts)
        assert all("prompt_progress" in parsed(chunk) for chunk in [each async for each in response.body_iterator])

    asyncio.run(check())


def test_who_does_not_ask_has_upstream_s_stream() -> None:
    async def check() -> None:
        prompt = Prompt()
        prompt.begin.set()
        stream = await prompt.stream(return_progress=False)
        assert stream.__qualname__ == prompt._stream().__qualname__
        assert [chunk async for chunk in stream] == ["data: a\n\n", "data: b\n\n"]

    asyncio.run(check())


def test_an_error_is_answered_as_it_is() -> None:
    answer = JSONResponse({}, 404)

    async def endpoint() -> JSONResponse:
        return answer

    assert asyncio.run(reporting(endpoint, RawRequest(), ASKING, None)) is answer


@pytest.mark.parametrize("changes", [{"return_progress": 1}, {"stream": False}, {"stream": "no"}])
def test_who_asks_wrongly_is_refused_before_the_engine_hears_of_it(changes: Any) -> None:
    async def endpoint() -> None:
        raise AssertionError("it was called")

    with pytest.raises(VLLMValidationError, match="return_progress"):
        asyncio.run(reporting(endpoint, RawRequest(), ASKING | changes, None))
