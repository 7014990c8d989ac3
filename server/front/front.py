"""The outermost ASGI middleware: what the server's clients may ask for, and the shape of every error.

vLLM adds it to the app of every API server process, by its name in ``--middleware``, outside everything else. Keys, the
limits of a key and the declared size of a body are looked at before any of the body is read.
"""

from dataclasses import dataclass

from fastapi import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ropeswitch.server.front import connection, routes
from ropeswitch.server.front.answer import Answer, refuse_websocket
from ropeswitch.server.front.body import Body
from ropeswitch.server.front.held_bodies import HeldBodies
from ropeswitch.server.front.key_limits import EVERYONE, KeyLimits
from ropeswitch.server.front.keys import KeyRing, bearer
from ropeswitch.server.front.queue_limits import QueueLimits
from ropeswitch.server.front.refusal import NO_KEY, WRONG_KEY, Refusal, refused
from ropeswitch.server.front.request import FrontRequest, current_request


@dataclass(frozen=True)
class FrontState:
    """What the middleware goes by; it finds it in the app's state, as ``front``.

    Attributes:
        keys: The API keys.
        metrics_keys: The keys that open the metrics alone; they are open where there are none.
        key_limits: What each key may ask for.
        queue: The limits of each length class.
        max_body_bytes: The largest body.
        held_bodies: What the bodies of the requests in hand hold.
        body_timeout: Seconds that may pass between two parts of a body.
    """

    keys: KeyRing
    metrics_keys: KeyRing
    key_limits: KeyLimits
    queue: QueueLimits
    max_body_bytes: int
    held_bodies: HeldBodies
    body_timeout: float

    def identify(self, scope: Scope, path: str) -> tuple[bytes, Refusal | None]:
        """Whose request it is: the digest of its key, or :data:`EVERYONE`; and why it is refused, if it is."""
        # A browser asks with OPTIONS, and without a key, whether it may send one.
        if scope.get("method") == "OPTIONS" or routes.is_open(path):
            return EVERYONE, None
        metrics = routes.is_metrics(path)
        needs_key = self.metrics_keys.needed if metrics else self.keys.needed
        if not needs_key:
            return EVERYONE, None
        token = _token(scope, path)
        if token is None:
            return EVERYONE, NO_KEY
        if metrics and self.metrics_keys.match(token) is not None:
            return EVERYONE, None
        key = self.keys.match(token)
        return (key, None) if key is not None else (EVERYONE, WRONG_KEY)


def _token(scope: Scope, path: str) -> bytes | None:
    """The key that a request shows: as a bearer's, or in the header in which Anthropic's clients send theirs."""
    headers = scope["headers"]
    token = next((bearer(value) for name, value in headers if name == b"authorization"), None)
    if token is None and routes.is_anthropic(path):
        token = next((value.strip() for name, value in headers if name == b"x-api-key"), None)
    return token or None


class Front:
    """See the module. Only requests that bring work count for their key: those that are posted, and WebSockets."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope["app"].state.front, scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope["app"].state.front, scope, receive, send)
        else:
            # The server's own start, before it takes any connection.
            state = scope["app"].state
            connection.limit(state.server.config, state.front.body_timeout)
            await self.app(scope, receive, send)

    async def _http(self, state: FrontState, scope: Scope, receive: Receive, send: Send) -> None:
        path = routes.route_path(scope)
        request = FrontRequest()
        body = Body(scope, receive, request, state.max_body_bytes, state.body_timeout)
        answer = Answer(send, request, body, anthropic=routes.is_anthropic(path))
        key, refusal = state.identify(scope, path)
        refusal = refusal or body.declared_too_large()
        counted = None
        if refusal is None and scope["method"] == "POST" and not routes.is_open(path):
            refusal = state.key_limits.take(key)
            counted = key if refusal is None else None
        if refusal is not None:
            refused(refusal.reason, None)
            if refusal.status != 413:
                await body.take_small()
            await answer.refuse(refusal)
            return
        token = current_request.set(request)
        try:
            await self._app(scope, body, answer, request)
        finally:
            for each in request.over:
                each()
            current_request.reset(token)
            state.queue.settle(request.tickets)
            if counted is not None:
                state.key_limits.give_back(counted)

    async def _app(self, scope: Scope, body: Body, answer: Answer, request: FrontRequest) -> None:
        try:
            await self.app(scope, body.receive, answer.send)
        except HTTPException:
            # Raised by the body, in a handler that reads it by itself.
            if request.refusal is None or answer.started:
                raise
            await answer.refuse(request.refusal)
        except ClientDisconnect:
            pass  # in its own body; there is nobody to answer
        except Exception:
            if not answer.started:
                await answer.fail()
            # The server logs it; the app's own outermost handler sees that it was answered.
            raise

    async def _websocket(self, state: FrontState, scope: Scope, receive: Receive, send: Send) -> None:
        key, refusal = state.identify(scope, routes.route_path(scope))
        refusal = refusal or state.key_limits.take(key)
        if refusal is not None:
            refused(refusal.reason, None)
            await refuse_websocket(refusal, scope.get("extensions") or (), receive, send)
            return
        try:
            await self.app(scope, receive, send)
        finally:
            state.key_limits.give_back(key)
