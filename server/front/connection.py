"""A connection with limits on the time and size of a request's head, and on the time for sending data to the client.

Each address has a share of the connections; WebSockets count as sequences instead (``queue_limits.py``). uvicorn has none of
these limits, and its parser buffers a head, or data after a body, without a limit. HTTP is left to uvicorn's
protocol, which does not show when a head is complete; the outer middleware shows it, with :func:`serving`.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.types import Message, Receive, Scope

from ropeswitch.server.front.body import declared_length
from ropeswitch.server.front.limits.keys import client_at
from ropeswitch.server.front.refusal import Refusal, no_room, refusal_body, refused, too_many_headers
from ropeswitch.server.front.state import FrontState

# Seconds for connections to close at shutdown; the server's requests have ended before that (life_cycle.py).
LEAVING_SECONDS = 5
# Bytes of a body that may arrive, beyond a head, before the app receives any: more than uvicorn reads ahead.
READ_AHEAD = 1 << 20
# Name of :meth:`Connection.request` in ``scope["state"]``.
_STATE = "ropeswitch_connection"


class Connection(asyncio.Protocol):
    """A connection that uvicorn's protocol serves, which ``make`` makes with the state that each request's scope gets.

    A head may take ``front.body_timeout`` to arrive and have ``head_bytes``. The client must read data within that time too.
    """

    def __init__(
        self,
        front: FrontState,
        head_bytes: int,
        make: Callable[..., asyncio.Protocol],
        *,
        app_state: Mapping[str, Any],
        **uvicorn: Any,
    ) -> None:
        self._seconds, self._headers, self._connections = front.body_timeout, front.max_headers, front.connections
        self._head_bytes = head_bytes
        self._client: bytes | None = None  # None while it is not counted
        self._inner = make(app_state={**app_state, _STATE: self.request}, **uvicorn)
        self.pause_writing = self._inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = self._inner.resume_writing  # type: ignore[method-assign]
        self.eof_received = self._inner.eof_received  # type: ignore[method-assign]
        self._transport: asyncio.Transport
        # Deadline of the next head; None while requests are served, and until a byte of it has arrived.
        self._timer: asyncio.TimerHandle | None = None
        self._requests = 0
        # Bytes and lines received since the last request began, or since the app last received a part of its body.
        self._held = self._lines = 0
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._inner.connection_made(transport)
        if (connected := transport.get_extra_info("socket")) is not None and connected.family != socket.AF_UNIX:
            # The kernel ends a connection whose peer acknowledges no data for this long.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._seconds * 1000))
        client = client_at((transport.get_extra_info("peername") or (None,))[0])
        if self._connections.room(client) < 1:
            self._refuse(no_room("unavailable", "server_busy", self._connections, "connections are open"))
        else:
            self._connections.add(client, 1)
            self._client = client
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._held += len(data)
        self._lines += data.count(b"\n")
        self._inner.data_received(data)
        if self._transport.get_protocol() is not self:
            self._leave()  # uvicorn's WebSocket protocol has taken over
        elif self._held > self._head_bytes or self._lines > self._headers:
            # After the first step of a request whose head is now complete.
            asyncio.get_running_loop().call_soon(self._check_held)
        elif not self._requests and self._timer is None:
            self._watch()

    @contextmanager
    def request(self, scope: Scope, receive: Receive) -> Iterator[Receive]:
        self._unwatch()
        self._requests += 1
        self._held = self._lines = 0
        self._in_body = declared_length(scope) != 0

        async def receiving() -> Message:
            message = await receive()
            self._held = self._lines = 0
            self._in_body = message.get("more_body", False)
            return message

        try:
            yield receiving
        finally:
            self._requests -= 1
            self._in_body = False
            if self._held and not self._requests and not self._transport.is_closing():
                self._watch()

    def _check_held(self) -> None:
        # The parser keeps more than a hundred bytes for each header, however short. Two lines are no headers.
        crowded = not self._in_body and self._lines > self._headers + 2
        if not self._requests and (crowded or self._held > self._head_bytes):
            message = f"The request headers exceed this server's limit of {self._head_bytes} bytes."
            large = Refusal("head_bytes", 431, "request_too_large", message)
            self._refuse(too_many_headers(self._headers) if crowded else large)
        elif crowded or self._held > self._head_bytes + self._in_body * READ_AHEAD:
            self._transport.abort()

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._late)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        self._unwatch()
        if self._client is not None:
            self._connections.add(self._client, -1)
            self._client = None

    def _late(self) -> None:
        if self._held:
            message = f"The request headers were incomplete after {self._seconds:g} seconds."
            self._refuse(Refusal("head_timeout", 408, "request_timeout", message))
        else:
            self._transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        if self._transport.is_closing():
            return
        refused(refusal.reason, None)
        content = refusal_body(refusal, anthropic=False)
        start = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: application/json\r\n"
        self._transport.write(f"{start}content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode() + content)
        self._transport.close()


def serving(scope: Scope, receive: Receive) -> AbstractContextManager[Receive]:
    """Suspend the limits on heads of a request's connection; the context's value replaces the ASGI ``receive``."""
    request: Callable[[Scope, Receive], AbstractContextManager[Receive]] | None = scope.get("state", {}).get(_STATE)
    return request(scope, receive) if request is not None else nullcontext(receive)


def limit(config: Any, front: FrontState) -> None:
    """Make a server use :class:`Connection`, and close its connections soon after it shuts down.

    ``config`` is the server's ``uvicorn.Config``, loaded, before any connection, with vLLM's
    ``--h11-max-incomplete-event-size``.
    """
    head_bytes = config.h11_max_incomplete_event_size
    config.http_protocol_class = partial(Connection, front, head_bytes, config.http_protocol_class)
    config.timeout_graceful_shutdown = LEAVING_SECONDS
