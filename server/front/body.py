"""Receives a request's body with limits on its size, on pauses, and on its rate."""

import asyncio
import time
from contextlib import suppress

from starlette.types import Message, Receive, Scope

from ropeswitch.server.front.context import RequestContext
from ropeswitch.server.front.refusal import Refusal, RefusedError

# Minimum bytes per second of a body: it may take 10 minutes, but need not be faster than a link of 1 Mbit/s, nor may it be
# slower than 1 KiB/s. One of unknown length is taken for the largest.
BODY_SECONDS = 600
LEAST_RATE, MOST_RATE = 1024, 100_000
# Limits for discarding the rest of a refused body: seconds and bytes. Closing a connection while the
# client still sends can lose the response; nginx lingers in the same way.
LINGER_SECONDS = 30.0
LINGER_BYTES = 64 << 20


def declared_length(scope: Scope) -> int | None:
    """Return the declared length of a request's body in bytes; None if unknown, as with chunked encoding."""
    length: int | None = 0
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            length = int(value) if len(value) < 20 and value.isdigit() else None
    return length


class Body:
    """The body of one HTTP request, at most ``max_bytes`` long.

    It may be up to ``timeout`` seconds behind the minimum rate for its length; bytes ahead of that rate earn no time.
    ``whole`` is whether all of it was received, or the client has disconnected.
    """

    def __init__(self, scope: Scope, receive: Receive, context: RequestContext, max_bytes: int, timeout: float) -> None:
        self.length = declared_length(scope)
        self.whole = self.length == 0
        self._receive = receive
        self._context = context
        self._max_bytes = max_bytes
        message = f"The request body exceeds this server's limit of {max_bytes} bytes. Send a smaller one."
        self._too_large = Refusal("body_bytes", 413, "request_too_large", message)
        length = max_bytes if self.length is None else self.length
        self._rate = min(MOST_RATE, max(LEAST_RATE, length / BODY_SECONDS))
        self._timeout = self._left = timeout
        self._received = 0

    def check_declared(self) -> None:
        """Raise RefusedError for a declared length that is too large."""
        if self.length is not None and self.length > self._max_bytes:
            raise RefusedError(self._too_large)

    async def receive(self) -> Message:
        """Receive the next part, within the limits.

        Raises:
            RefusedError: when the body is too large or too slow.
        """
        if self.whole:
            return await self._part()
        asked, before = time.monotonic(), self._received
        try:
            async with asyncio.timeout(self._left):
                message = await self._part()
        except TimeoutError:
            behind = f"{self._timeout:g} s behind the minimum rate of {self._rate:.0f} bytes per second"
            slow = Refusal("body_timeout", 408, "request_timeout", f"The request body arrived too slowly: {behind}.")
            raise self._context.refuse(RefusedError(slow)) from None
        left = self._left - (time.monotonic() - asked) + (self._received - before) / self._rate
        self._left = min(self._timeout, left)
        if self._received > self._max_bytes:
            raise self._context.refuse(RefusedError(self._too_large))
        return message

    async def discard(self) -> None:
        """Receive the rest of the body and discard it, within the LINGER limits."""
        most = self._received + LINGER_BYTES
        # The connection is closed with the rest unread.
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self.whole and self._received < most:
                    await self._part()

    async def _part(self) -> Message:
        message, sent = await self._receive(), self._context.sent
        self._received += len(message.get("body", b""))
        self.whole = message["type"] != "http.request" or not message.get("more_body", False)
        # The server also sends this after a complete response, and after an error the client has its whole response.
        if message["type"] == "http.disconnect" and not sent.whole and (sent.final_status or 200) < 400:
            sent.left = True
        return message
