"""A scripted server, for tests of the client with delays, errors and lost connections.

Its tokens are words and marks, each with the space before it. It tells the pass key that it finds in a prompt.
"""

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "scripted"
CHAT_HEAD, CHAT_TAIL = "<user>", "<end><assistant>"


@dataclass(frozen=True)
class Reply:
    """How one request is answered."""

    status: int = 200
    message: str = ""  # of an error
    tokens: int | None = None  # None for as many as were asked for
    before: float = 0.0  # seconds until the first one
    between: float = 0.0  # seconds between two
    cut_after: int | None = None  # tokens after which the connection is lost
    broken_after: int | None = None  # tokens after which the stream ends with an error event
    text: str | None = None  # None for the pass key
    prompt_tokens_off: int = 0  # added to the count of the prompt's tokens


@dataclass
class Scripted:
    """The server."""

    reply: Callable[[int, dict[str, Any]], Reply] = lambda number, body: Reply()  # to the n-th completion
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)  # bodies of all completions
    most_at_once: int = 0  # completions in flight at the same time
    left: int = 0  # completions whose client left before the end
    card: dict[str, Any] = field(default_factory=lambda: {"max_model_len": 100_000, "owned_by": "vllm"})
    cut: str = r" ?\w+|[^\w\s]|<\w+>|\s"  # how texts are cut into tokens
    limits: tuple[int, ...] = ()
    ids: dict[str, int] = field(default_factory=dict)
    _at_once: int = 0

    def tokens(self, text: str) -> list[int]:
        return [self.ids.setdefault(part, len(self.ids)) for part in re.findall(r"<\w+>|" + self.cut, text)]

    def rendered(self, body: dict[str, Any]) -> list[int]:
        if "messages" in body:
            ends = {"user": (CHAT_HEAD, CHAT_TAIL), "assistant": ("", "<end>")}
            around = ((each["content"], *ends[each["role"]]) for each in body["messages"])
            return self.tokens("".join(head + content + tail for content, head, tail in around))
        prompt = body["prompt"]
        return list(prompt) if isinstance(prompt, list) else self.tokens(prompt)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/rope", self._rope)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, **self.card}]})

    async def _rope(self, request: web.Request) -> web.Response:
        if not self.limits:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"sets": [{"name": f"r{limit}", "max_length": limit} for limit in self.limits]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": self.rendered(await request.json())})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.asked)
        self.asked.append(body)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        done = False
        try:
            answer = await self._answer(request, body, self.reply(number, body))
            done = True
            return answer
        finally:
            self._at_once -= 1
            self.left += not done

    async def _answer(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        if reply.status != 200:
            return web.json_response({"error": {"message": reply.message}}, status=reply.status)
        ids = self.rendered(body)
        words = {value: key for key, value in self.ids.items()}
        key = re.search(r"pass key is (\d+)", "".join(words.get(each, "?") for each in ids))
        text = reply.text if reply.text is not None else f"It is {key[1]}." if key else "None."
        asked = body.get("max_completion_tokens", body.get("max_tokens"))
        count = min(asked, asked if reply.tokens is None else reply.tokens)
        usage = {"prompt_tokens": len(ids) + reply.prompt_tokens_off, "completion_tokens": count}
        chat = "messages" in body
        await asyncio.sleep(reply.before)
        if not body["stream"]:
            await asyncio.sleep(count * reply.between)
            choice = {"message": {"content": text}} if chat else {"text": text}
            return web.json_response({"choices": [{**choice, "finish_reason": "length"}], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "x-rope-factor-set": "short"})
        await response.prepare(request)
        for number in range(count):
            if number == reply.cut_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if number == reply.broken_after:
                await response.write(_event({"error": {"message": "the engine died"}}))
                return response
            part = text if number == 0 else "."
            choice = {"delta": {"content": part}} if chat else {"text": part}
            end = {"finish_reason": "length"} if number == count - 1 else {"finish_reason": None}
            await response.write(_event({"choices": [{"index": 0, **choice, **end}]}))
            await asyncio.sleep(reply.between)
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response


def _event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


@contextmanager
def serving(server: Scripted, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Serve on a free port of the loopback, on a loop and a thread of its own."""
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        # Without it, a handler would not notice that its client has left.
        runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
