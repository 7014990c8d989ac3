"""Sends HTTP responses: errors in OpenAI's shape, and our own refusals instead of the handlers' versions of them."""

import json
import logging
from collections.abc import Awaitable, Iterable

from starlette.types import Message, Receive, Scope, Send

from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.front import routes
from ropeswitch.server.front.body import Body
from ropeswitch.server.front.context import RequestContext
from ropeswitch.server.front.error_bodies import ERROR_EVENT, converted, converted_event, refusal_body
from ropeswitch.server.front.refusal import LEAVING, Refusal

logger = logging.getLogger(__name__)

Headers = Iterable[tuple[bytes, bytes]]

# RFC 6455, section 7.4.1: the message violates the endpoint's policy.
_POLICY = 1008
# RFC 6455, section 7.4.1, and the registry it names: try again later.
_TRY_AGAIN = 1013
# Header of a request's ID; vLLM adds it to the responses of its handlers.
REQUEST_ID = b"x-request-id"
_ANTHROPIC_ID = b"request-id"
# Headers that describe upstream's body, which is replaced.
_OF_BODY = (b"content-length", b"content-type", b"content-encoding")


def is_event_stream(start: Message) -> bool:
    """Whether ``start`` begins a stream of server-sent events."""
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )


class Answer:
    """The response to one HTTP request.

    Args:
        send: The server's ASGI ``send``.
        context: The request's context; records what was sent.
        body: The request's body.
        scope: The request's scope.
        path: :func:`~ropeswitch.server.front.routes.route_path`.

    Attributes:
        started: Whether any part of the response was sent.
    """

    def __init__(self, send: Send, context: RequestContext, body: Body, scope: Scope, path: str) -> None:
        self.started = False
        self._send = send
        self._context = context
        self._body = body
        self._scope = scope
        self._path = path
        self._anthropic = routes.is_anthropic(path)
        # The start of an error response, held back until its body is complete.
        self._error: Message | None = None
        self._held = bytearray()
        self._events = False

    async def send(self, message: Message) -> None:
        """Send a message of the app, which gets this as its ASGI ``send``."""
        if message["type"] == "http.response.start":
            self._context.sent.final_status = message["status"]
            if message["status"] >= 400:
                self._error = message
                return
            self._events = is_event_stream(message)
        elif message["type"] == "http.response.body":
            if self._error is not None:
                self._held += message.get("body", b"")
                if not message.get("more_body", False):
                    await self._send_error(self._error)
                return
            part = message.get("body", b"")
            if self._events and part.startswith(ERROR_EVENT) and (found := converted_event(part)) is not None:
                self._context.sent.final_status, event = found
                message = {**message, "body": event}
        self.started = True
        await self._out(message)

    def _out(self, message: Message) -> Awaitable[None]:
        # Called for every token of every streamed response, so it adds no coroutine.
        if message["type"] == "http.response.start":
            message = self._identified(message)
            # vLLM sends an empty 200 to a client that has disconnected.
            if not self._context.sent.left:
                self._context.sent.status = message["status"]
        elif not message.get("more_body", False):
            self._context.sent.whole = True
        return self._send(message)

    def _identified(self, start: Message) -> Message:
        """Return the start of a response with the request's ID, added if missing, and repeated for Anthropic's clients."""
        if (given := self._context.request_id) is None:
            return start
        headers = list(start.get("headers", ()))
        if not any(name.lower() == REQUEST_ID for name, _ in headers):
            headers.append((REQUEST_ID, given))
        if self._anthropic:
            headers.append((_ANTHROPIC_ID, given))
        return {**start, "headers": headers}

    async def _send_error(self, start: Message) -> None:
        if self._context.refusal is not None:
            await self.refuse(self._context.refusal)
            return
        status = start["status"]
        headers = [(name, value) for name, value in start.get("headers", ()) if name.lower() not in _OF_BODY]
        if status in (429, 503) and not any(name.lower() == b"retry-after" for name, _ in headers):
            headers.append((b"retry-after", b"1"))
        error = self._context.error
        # vLLM's error handlers do not log it. A dead engine has logged its own error, with which every request ends.
        if status == 500 and error is not None and not vllm_adapter.is_dead_engine(error):
            logger.error("%s %s failed", self._scope["method"], self._path, exc_info=error)
        content = self._unrouted(start) or bytes(self._held)
        await self._respond(status, headers, converted(status, content, anthropic=self._anthropic))

    def _unrouted(self, start: Message) -> bytes | None:
        """Return the error body for a request that matches no route; None for other errors."""
        status, method = start["status"], self._scope["method"]
        if status == 405:
            allowed = next((value.decode() for name, value in start["headers"] if name == b"allow"), "other methods")
            message = f"{method} {self._path[:200]}: this route accepts only {allowed}."
        elif status == 404 and "endpoint" not in self._scope:
            message = (
                f"{method} {self._path[:200]}: no such route. OpenAI's clients need a base URL that ends in /v1; "
                "GET /openapi.json lists the routes."
            )
        else:
            return None
        return json.dumps({"error": message}).encode()

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal."""
        await self._respond(refusal.status, refusal.headers, refusal_body(refusal, anthropic=self._anthropic))

    async def fail(self) -> None:
        """Send a 500 without details; only the log has them."""
        await self._respond(500, [(b"connection", b"close")], converted(500, b"", anthropic=self._anthropic))

    async def _respond(self, status: int, headers: Headers, content: bytes) -> None:
        self.started = True
        self._context.sent.final_status = status
        length = str(len(content)).encode()
        headers = [*headers, (b"content-type", b"application/json"), (b"content-length", length)]
        rest = not self._body.whole
        if rest and (b"connection", b"close") not in headers:
            headers.append((b"connection", b"close"))
        await self._out({"type": "http.response.start", "status": status, "headers": headers})
        await self._out({"type": "http.response.body", "body": content, "more_body": rest})
        if rest:
            # The length shows the client that its response is complete. After a 408 the rest of the body is not awaited.
            if status != 408:
                await self._body.throw_away()
            await self._out({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse_websocket(refusal: Refusal, extensions: Iterable[str], receive: Receive, send: Send) -> None:
    """Refuse a WebSocket handshake: with an HTTP response if the server supports it, else by closing it at once."""
    await receive()  # websocket.connect
    if refusal is LEAVING:
        await send({"type": "websocket.close", "code": _TRY_AGAIN, "reason": "the server is shutting down"})
        return
    if "websocket.http.response" not in extensions:
        await send({"type": "websocket.close", "code": _POLICY, "reason": refusal.message})
        return
    content = refusal_body(refusal, anthropic=False)
    headers = [
        *refusal.headers,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": content})
