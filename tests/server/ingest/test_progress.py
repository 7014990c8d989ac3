"""Chunks of progress come before a stream's own, and the stream ends as it would without them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ropeswitch.server.context import RequestContext, Ticket, current
from ropeswitch.server.ingest import progress as module
from ropeswitch.server.ingest.progress import show_progress


def request(**fields: Any) -> Any:
    return SimpleNamespace(stream=True, model="m", model_extra={"return_progress": True}, **fields)


def raw_request() -> Any:
    return SimpleNamespace(state=SimpleNamespace(request_metadata=SimpleNamespace(request_id="cmpl-1")))


class Prompt:
    """A prompt of ten tokens, of which two are cached, and of an answer that is told when to begin."""

    def __init__(self) -> None:
        self.processed, self.begin, self.closed = 0, asyncio.Event(), False

    async def progress(self, request_id: str) -> tuple[int, int]:
        assert request_id == "cmpl-1-0"
        self.processed += 3
        return self.processed, 2

    async def create_completion(self, request: Any, raw_request: Any = None) -> AsyncGenerator[str, None]:
        return self._stream()

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
    token = current.set(RequestContext(tickets=[Ticket(0, 2, 20, "cmpl-1-0", 0.0)]))
    yield
    current.reset(token)


def told(chunk: str) -> Any:
    return json.loads(chunk.removeprefix("data: "))


def test_progress_until_the_first_token() -> None:
    async def check() -> None:
        prompt = Prompt()
        show_progress(SimpleNamespace(openai_serving_completion=prompt), prompt.progress)
        stream = await prompt.create_completion(request(), raw_request())
        chunks = [told(await anext(stream)) for _ in range(3)]
        assert [each["prompt_progress"]["processed"] for each in chunks] == [3, 6, 9]
        assert all((each["prompt_progress"]["total"], each["prompt_progress"]["cache"]) == (10, 2) for each in chunks)
        assert all(
            (each["id"], each["object"], each["choices"]) == ("cmpl-1", "text_completion", []) for each in chunks
        )
        prompt.begin.set()
        rest = [chunk async for chunk in stream]
        assert rest[-2:] == ["data: a\n\n", "data: b\n\n"] and prompt.closed

    asyncio.run(check())


def test_a_client_that_leaves_ends_the_stream() -> None:
    async def check() -> None:
        prompt = Prompt()
        show_progress(SimpleNamespace(openai_serving_completion=prompt), prompt.progress)
        stream = await prompt.create_completion(request(), raw_request())
        await anext(stream)
        await asyncio.sleep(0)
        await stream.aclose()
        assert prompt.closed

    asyncio.run(check())


def test_who_does_not_ask_has_upstream_s_stream() -> None:
    async def check() -> None:
        prompt = Prompt()
        upstream = prompt.create_completion
        show_progress(SimpleNamespace(openai_serving_completion=prompt), prompt.progress)
        prompt.begin.set()
        plain = request()
        plain.model_extra = None
        stream = await prompt.create_completion(plain, raw_request())
        assert stream.__qualname__ == (await upstream(plain)).__qualname__
        assert [chunk async for chunk in stream] == ["data: a\n\n", "data: b\n\n"]

    asyncio.run(check())
