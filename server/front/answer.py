"""Shapes HTTP responses: errors in OpenAI's shape, our own refusals, and the header of factor sets.

``x-rope-factor-set: short, long`` goes with the responses of requests that run prompts, not with errors. Handlers give every
prompt to the engine before they start the response, streams included, so the sets are known when the headers are sent; only
streams of the Responses API begin before, and have no such header.
"""

import logging
from collections.abc import Awaitable, Iterable

from starlette.types import Message, Receive, Scope, Send

from ropeswitch.factors.factor_set import SET_HEADER
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.front.body import Body
from ropeswitch.server.front.context import RequestContext
from ropeswitch.server.front.refusal import ERROR_EVENT, Refusal, converted, converted_event, refusal_body
from ropeswitch.server.front.state import REQUEST_ID, is_anthropic

logger = logging.getLogger(__name__)

# Headers that describe upstream's body, which is replaced.
_OF_BODY = (b"content-length", b"content-type", b"content-encoding")
_NO_ROUTE = b'{"error": "Not Found: no such route. The base URL of OpenAI\'s clients ends in /v1."}'


def _described(headers: Iterable[tuple[bytes, bytes]], content: bytes) -> list[tuple[bytes, bytes]]:
    length = str(len(content)).encode()
    return [*headers, (b"content-type", b"application/json"), (b"content-length", length)]


class Answer:
    """The response to one HTTP request; ``started`` is whether any part of it was sent."""

    def __init__(self, send: Send, context: RequestContext, body: Body, scope: Scope, path: str) -> None:
        self.started = False
        self._send = send
        self._context = context
        self._body = body
        self._scope = scope
        self._anthropic = is_anthropic(path)
        # The start of an error response, held back until its body is complete.
        self._error: Message | None = None
        self._held = bytearray()
        self._events = False  # whether it is an event stream that has not ended

    async def send(self, message: Message) -> None:
        """Send a message of the app, which gets this as its ASGI ``send``."""
        if message["type"] == "http.response.start":
            self._context.sent.final_status = message["status"]
            if message["status"] >= 400:
                self._error = message
                return
            kinds = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
            self._events = any(each.startswith(b"text/event-stream") for each in kinds)
        elif message["type"] == "http.response.body":
            part = message.get("body", b"")
            if self._error is not None:
                self._held += part
                if not message.get("more_body", False):
                    await self._send_error(self._error)
                return
            if self._events and part.startswith(ERROR_EVENT) and (found := converted_event(part)) is not None:
                self._context.sent.final_status, event = found
                message = {**message, "body": event}
            self._events = self._events and message.get("more_body", False)
        self.started = True
        await self._out(message)

    def _out(self, message: Message) -> Awaitable[None]:
        # Called for every token of every streamed response, so it adds no coroutine.
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if message["status"] < 400 and (placements := self._context.entered.placements):
                headers.append((SET_HEADER.encode(), ", ".join(each.name for each in placements).encode()))
            if (given := self._context.request_id) is not None:
                if not any(name.lower() == REQUEST_ID for name, _ in headers):
                    headers.append((REQUEST_ID, given))
                if self._anthropic:
                    headers.append((b"request-id", given))
            message = {**message, "headers": headers}
            # vLLM sends an empty 200 to a client that has disconnected.
            if not self._context.sent.left:
                self._context.sent.status = message["status"]
        elif not message.get("more_body", False):
            self._context.sent.whole = True
        return self._send(message)

    async def _send_error(self, start: Message) -> None:
        if self._context.refusal is not None:
            await self.refuse(self._context.refusal)
            return
        status, error = start["status"], self._context.error
        headers = [(name, value) for name, value in start.get("headers", ()) if name.lower() not in _OF_BODY]
        if status in (429, 503) and not any(name.lower() == b"retry-after" for name, _ in headers):
            headers.append((b"retry-after", b"1"))
        # vLLM's error handlers do not log it. A dead engine has logged its own error, with which every request ends.
        if status == 500 and error is not None and not vllm_adapter.is_dead_engine(error):
            logger.error("%s %s failed", self._scope["method"], self._scope["path"], exc_info=error)
        content = _NO_ROUTE if status == 404 and "endpoint" not in self._scope else bytes(self._held)
        await self._respond(status, headers, converted(status, content, anthropic=self._anthropic))

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal."""
        await self._respond(refusal.status, refusal.headers, refusal_body(refusal, anthropic=self._anthropic))

    async def fail(self, error: Exception) -> bool:
        """Send a 500 without details, or end an event stream with an event; return whether that blames the client."""
        if not self.started:
            await self._respond(500, [(b"connection", b"close")], converted(500, b"", anthropic=self._anthropic))
        elif self._events:
            # As most of vLLM's handlers do.
            blame = vllm_adapter.blames_client(error)
            self._context.sent.final_status = 400 if blame else 500
            event = converted(self._context.sent.final_status, (blame or "").encode(), anthropic=False)
            await self._out({"type": "http.response.body", "body": b"data: %b\n\n" % event, "more_body": False})
            return blame is not None
        return False

    async def _respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], content: bytes) -> None:
        self.started = True
        self._context.sent.final_status = status
        headers = _described(headers, content)
        rest = not self._body.whole
        if rest and (b"connection", b"close") not in headers:
            headers.append((b"connection", b"close"))
        await self._out({"type": "http.response.start", "status": status, "headers": headers})
        await self._out({"type": "http.response.body", "body": content, "more_body": rest})
        if rest:
            # The length shows the client that its response is complete. After a 408 the rest of the body is not awaited.
            if status != 408:
                await self._body.discard()
            await self._out({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse_websocket(refusal: Refusal, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket handshake with an HTTP response, which uvicorn supports."""
    await receive()  # websocket.connect
    content = refusal_body(refusal, anthropic=False)
    headers = _described(refusal.headers, content)
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": content})
