"""Chunks of progress come before a stream's own, and the stream ends as it would without them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.datastructures import State
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive
from vllm.exceptions import VLLMValidationError

from ropeswitch.server.front.bodies import progress as module
from ropeswitch.server.front.bodies.progress import showing
from ropeswitch.server.front.context import Entered, RequestContext, Ticket, current

ASKING = {"return_progress": True, "stream": True, "model": "m"}


class Body(BaseModel, extra="allow"):
    stream: bool = False
    model: str | None = None


class RawRequest(Request):
    """One whose handler has named it."""

    def __init__(self, body: Any = None, request_id: str = "cmpl-1") -> None:
        super().__init__({"type": "http"})
        self.state.request_metadata = State({"request_id": request_id})
        self._body = b"" if body is None else json.dumps(body).encode()


class Prompt:
    """A prompt of ten tokens, of which two are cached, and of an answer that begins when its event is set."""

    def __init__(self, interval: float = 0) -> None:
        self.processed, self.begin, self.closed, self.interval = 0, asyncio.Event(), False, interval
        status = State({"model": "served"})
        self.state = State({"ropeswitch": State({"prefill_progress": self.progress, "status": status})})
        self.showing = showing(self.endpoint, self.state)
        self.wait = 0.0

    async def progress(self, request_id: str) -> tuple[int, int]:
        assert request_id == "cmpl-1-0"
        await asyncio.sleep(self.wait)
        self.processed += 3
        return self.processed, 2

    async def endpoint(self, **_: Any) -> StreamingResponse:
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
    token = current.set(RequestContext(entered=Entered(tickets=[Ticket(0, 2, 20, "cmpl-1-0", 0.0)])))
    yield
    current.reset(token)


def parsed(chunk: str) -> Any:
    return json.loads(chunk.removeprefix("data: "))


@pytest.mark.parametrize("typed", [True, False])
def test_progress_until_the_first_token(typed: bool) -> None:
    """By an endpoint with a body of its own, and by one that reads it itself."""

    async def check() -> None:
        prompt = Prompt()
        values = {"request": Body(**ASKING), "raw_request": RawRequest()} if typed else {"raw": RawRequest(ASKING)}
        stream = (await prompt.showing(**values)).body_iterator
        chunks = [parsed(await anext(stream)) for _ in range(3)]
        reports = [each["prompt_progress"] for each in chunks]
        assert [(each["total"], each["cache"], each["processed"]) for each in reports] == [
            (10, 0, 0),
            (10, 2, 3),
            (10, 2, 6),
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
        stream = (
            await prompt.showing(request=Body(**ASKING), raw_request=RawRequest(None, "chatcmpl-1"))
        ).body_iterator
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
        stream = (await prompt.showing(request=Body(**ASKING), raw_request=RawRequest())).body_iterator
        assert parsed(await anext(stream))["prompt_progress"]["processed"] == 0
        assert {await asyncio.wait_for(anext(stream), 5) for _ in range(3)} == {": keep-alive\n\n"}
        prompt.begin.set()
        rest = [chunk async for chunk in stream if not chunk.startswith(":")]
        assert rest == ["data: a\n\n", "data: b\n\n"] and prompt.closed

    asyncio.run(check())


def test_a_request_that_names_no_model_reports_the_served_one() -> None:
    async def check() -> None:
        prompt = Prompt()
        stream = (await prompt.showing(raw=RawRequest(ASKING | {"model": None}))).body_iterator
        assert parsed(await anext(stream))["model"] == "served"
        await stream.aclose()

    asyncio.run(check())


def test_a_client_that_leaves_ends_the_stream() -> None:
    async def check() -> None:
        prompt = Prompt(interval=60)
        stream = (await prompt.showing(request=Body(**ASKING), raw_request=RawRequest())).body_iterator
        await anext(stream)
        await asyncio.sleep(0)
        await stream.aclose()
        assert prompt.closed

    asyncio.run(check())


def test_a_stream_that_ends_without_a_token() -> None:
    async def empty(**_: Any) -> StreamingResponse:
        async def nothing() -> AsyncGenerator[str, None]:
            await asyncio.sleep(0)
            return
            yield

        return StreamingResponse(nothing())

    async def check() -> None:
        prompt = Prompt()
        response = await showing(empty, prompt.state)(request=Body(**ASKING), raw_request=RawRequest())
        assert all("prompt_progress" in parsed(chunk) for chunk in [each async for each in response.body_iterator])

    asyncio.run(check())


@pytest.mark.parametrize("body", [{"stream": True}, {"stream": True, "return_progress": False}, [1], "text", None])
def test_who_does_not_ask_has_upstream_s_stream(body: Any) -> None:
    async def check() -> None:
        prompt = Prompt()
        prompt.begin.set()
        responses = [await prompt.showing(raw_request=RawRequest(body))]
        if isinstance(body, dict):
            responses.append(await prompt.showing(request=Body(**body), raw_request=RawRequest()))
        for response in responses:
            assert response.body_iterator.__qualname__ == prompt._stream().__qualname__
            assert [chunk async for chunk in response.body_iterator] == ["data: a\n\n", "data: b\n\n"]

    asyncio.run(check())


def test_an_error_is_answered_as_it_is() -> None:
    answer = JSONResponse({}, 404)

    async def endpoint(**_: Any) -> JSONResponse:
        return answer

    shown = showing(endpoint, State())(request=Body(**ASKING), raw_request=RawRequest())
    assert asyncio.run(shown) is answer


@pytest.mark.parametrize("changes", [{"return_progress": 1}, {"stream": False}, {"stream": "no"}])
def test_who_asks_wrongly_is_refused_before_the_engine_hears_of_it(changes: Any) -> None:
    async def endpoint(**_: Any) -> None:
        raise AssertionError("it was called")

    for values in ({"request": Body(**ASKING | changes)}, {}):
        with pytest.raises(VLLMValidationError, match="return_progress"):
            asyncio.run(showing(endpoint, State())(raw_request=RawRequest(ASKING | changes), **values))
