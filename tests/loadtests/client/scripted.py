"""A server that answers as it is told to: what the client does with delays, errors and lost connections is tested with it.

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
    """How one request is answered.

    Attributes:
        status: Of the response.
        message: Of an error.
        tokens: How many; None for as many as were asked for.
        before: Seconds until the first one.
        between: Seconds between two.
        cut_after: Tokens after which the connection is lost.
        broken_after: Tokens after which an error is told in the stream.
        text: Of the answer; None for the pass key.
        prompt_tokens_off: Added to the count of the prompt's tokens.
    """

    status: int = 200
    message: str = ""
    tokens: int | None = None
    before: float = 0.0
    between: float = 0.0
    cut_after: int | None = None
    broken_after: int | None = None
    text: str | None = None
    prompt_tokens_off: int = 0


@dataclass
class Scripted:
    """The server.

    Attributes:
        url: Where.
        reply: How the n-th completion is answered, and what it asks.
        asked: The bodies of all completions.
        most_at_once: Completions in hand at the same time.
        left: Completions whose client left before the end.
        card: Of the model, in the list.
        cut: How texts are cut into tokens.
    """

    reply: Callable[[int, dict[str, Any]], Reply] = lambda number, body: Reply()
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    left: int = 0
    card: dict[str, Any] = field(default_factory=lambda: {"max_model_len": 100_000, "owned_by": "vllm"})
    cut: str = r" ?\w+|[^\w\s]|<\w+>|\s"
    limits: tuple[int, ...] = ()
    ids: dict[str, int] = field(default_factory=dict)
    _at_once: int = 0

    def tokens(self, text: str) -> list[int]:
        return [self.ids.setdefault(part, len(self.ids)) for part in re.findall(r"<\w+>|" + self.cut, text)]

    def rendered(self, body: dict[str, Any]) -> list[int]:
        if "messages" in body:
            return self.tokens(
                "".join(
                    (CHAT_HEAD if each["role"] == "user" else "")
                    + each["content"]
                    + (CHAT_TAIL if each["role"] == "user" else "<end>")
                    for each in body["messages"]
                )
            )
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
