"""A request's body on its way in: no larger than allowed, never standing still, and not dripping for ever."""

import asyncio
import time
from contextlib import suppress

from starlette.types import Message, Receive, Scope

from ropeswitch.server.context import RequestContext
from ropeswitch.server.front.refusal import Refusal, RefusedError, body_slow, body_stalled, body_too_large

# Bytes that must come in each second that a body takes longer than the time that it may stand still.
LEAST_RATE = 1024
# How long, in seconds, the rest of a body that is not wanted is thrown away, the longest pause in it, and how many bytes. A
# connection that is closed while its client still sends loses the answer on its way to it. As nginx does it.
LINGER_SECONDS = 30.0
LINGER_PAUSE = 5.0
LINGER_BYTES = 64 << 20
# A body of at most so many bytes is probably there already when its request is refused; it is given so many seconds.
SMALL_BYTES = 64 << 10
SMALL_SECONDS = 0.05


def declared_length(scope: Scope) -> int | None:
    """The length of a request's body in bytes; None where no header tells it, as where it comes in chunks."""
    length: int | None = 0
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            length = int(value) if len(value) < 20 and value.isdigit() else None
    return length


class Body:
    """The body of one HTTP request.

    Args:
        scope: The request's.
        receive: The server's.
        context: The request's.
        max_bytes: The largest body.
        timeout: Seconds that may pass between two parts of the body, and that it may take in all beside those for which
            :data:`LEAST_RATE` bytes came. A client that has sent it all may take its time.

    Attributes:
        whole: Whether all of it was received, or its client is gone.
    """

    def __init__(self, scope: Scope, receive: Receive, context: RequestContext, max_bytes: int, timeout: float) -> None:
        self.length = declared_length(scope)
        self.whole = self.length == 0
        self._receive = receive
        self._context = context
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._taken = 0
        self._waited = 0.0

    def check_declared(self) -> None:
        """Check the length that the headers declare.

        Raises:
            RefusedError: for a body that is too large.
        """
        if self.length is not None and self.length > self._max_bytes:
            raise RefusedError(body_too_large(self._max_bytes))

    async def receive(self) -> Message:
        """The server's ``receive``, watched.

        Raises:
            RefusedError: when the body grows too large, stops coming or comes too slowly.
        """
        if self.whole:
            return await self._receive()
        left = self._timeout + self._taken / LEAST_RATE - self._waited
        asked = time.monotonic()
        try:
            async with asyncio.timeout(min(self._timeout, left)):
                message = await self._part()
        except TimeoutError:
            slow = left < self._timeout and self._taken
            raise self._ended(body_slow(LEAST_RATE) if slow else body_stalled(self._timeout)) from None
        finally:
            self._waited += time.monotonic() - asked
        if self._taken > self._max_bytes:
            raise self._ended(body_too_large(self._max_bytes))
        return message

    async def take_small(self) -> None:
        """Receive a small body that nobody wants, so that its client, who may be told so often, can keep the connection."""
        if self.length is None or self.length > SMALL_BYTES:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(SMALL_SECONDS):
                while not self.whole:
                    await self._part()

    async def throw_away(self) -> None:
        """Receive what is left of the body and forget it, as long as it keeps coming and not for ever."""
        most = self._taken + LINGER_BYTES
        # The connection is closed on what is left of it.
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self.whole and self._taken < most:
                    async with asyncio.timeout(LINGER_PAUSE):
                        await self._part()

    async def _part(self) -> Message:
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        self.whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    def _ended(self, refusal: Refusal) -> RefusedError:
        return self._context.refuse(RefusedError(refusal))
