"""A connection with time limits for receiving a request's head and for sending data to the client.

uvicorn has neither limit, and its parser buffers a head, or data after a body, without a limit.
"""

import asyncio
import socket
from dataclasses import dataclass
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ropeswitch.server.front.error_bodies import refusal_body
from ropeswitch.server.front.refusal import NO_HTTP, Refusal, head_late, head_too_large, refused, too_many_headers

# Seconds for connections to close at shutdown; the server's requests have ended before that (life_cycle.py).
LEAVING_SECONDS = 5


@dataclass(frozen=True)
class Limits:
    """Limits for a client.

    Attributes:
        seconds: Maximum time for a head to arrive, and for the client to read none of the data sent to it.
        head_bytes: Maximum bytes of a head.
        headers: Maximum number of headers.
    """

    seconds: float
    head_bytes: int
    headers: int


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with limits.

    Args:
        limits: Limits for the client.
        uvicorn: Arguments of uvicorn's protocol.
    """

    def __init__(self, limits: Limits, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        # Whether a head is expected next, and the timer of its deadline.
        self._head = True
        self._timer: asyncio.TimerHandle | None = None
        # Bytes received since the parser last passed data to the app, and whether it did so for the latest ones.
        self._held = 0
        self._given = False
        self._refusal: Refusal | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (connected := transport.get_extra_info("socket")) is not None and connected.family != socket.AF_UNIX:
            # The kernel ends a connection whose peer acknowledges no data for this long.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._limits.seconds * 1000))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._given = False
        super().data_received(data)
        self._held = 0 if self._given else self._held + len(data)
        if self.transport.is_closing():
            return
        if self._held > self._limits.head_bytes:
            self._refuse(head_too_large(self._limits.head_bytes))
        elif self._head and self._timer is None:
            self._watch()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            self._refusal = too_many_headers(self._limits.headers)
            raise ValueError(self._refusal.message)  # the parser stops and asks for a 400

    def on_headers_complete(self) -> None:
        self._given, self._head = True, False
        self._unwatch()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._given = True
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # uvicorn's keep-alive timeout applies until the first byte of the next head.
        self._head = self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or NO_HTTP)

    def _watch(self) -> None:
        self._timer = self.loop.call_later(self._limits.seconds, self._late)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._held:
            self._refuse(head_late(self._limits.seconds))
        else:
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # The fault follows a request that is still being answered.
            self.transport.abort()
            return
        refused(refusal.reason, None)
        content = refusal_body(refusal, anthropic=False)
        headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(content)
        self.transport.write(STATUS_LINE[refusal.status] + headers + content)
        self.transport.close()


def limit(config: Any, seconds: float) -> None:
    """Make a server use :class:`Connection`, and close its connections soon after it shuts down.

    Args:
        config: The server's ``uvicorn.Config``, loaded, before any connection. vLLM has put the values of
            ``--h11-max-incomplete-event-size`` and ``--h11-max-header-count`` into it.
        seconds: See :class:`Limits`.

    Raises:
        TypeError: when uvicorn would use another protocol class, as it does without httptools.
    """
    if config.http_protocol_class is not HttpToolsProtocol:
        raise TypeError(f"uvicorn would serve HTTP with {config.http_protocol_class}, not with HttpToolsProtocol")
    limits = Limits(seconds, config.h11_max_incomplete_event_size, config.h11_max_header_count)
    config.http_protocol_class = partial(Connection, limits)
    config.timeout_graceful_shutdown = LEAVING_SECONDS
