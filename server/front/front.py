"""Our ASGI middleware: makes each request's context, and admits, refuses and logs requests.

vLLM adds it to the app of every API server process, by its name in ``--middleware``, outside everything else. It checks a
request's key, headers, declared body size and the limits of its key before any of the body is read; runs the app; then
releases the request's tickets and key, counts it if it never reached an engine, and writes its line in the access log.
"""

import asyncio
import time

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ropeswitch.server.app.life_cycle import LIFE
from ropeswitch.server.app.parts import ServerParts
from ropeswitch.server.front import connection, state
from ropeswitch.server.front.answer import Answer, refuse_websocket
from ropeswitch.server.front.body import Body
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.refusal import Refusal, RefusedError, refused
from ropeswitch.server.metrics import fates
from ropeswitch.server.metrics.scheduling_metrics import PATHS as METRICS_PATHS


class Front:
    """See the module. Only POST requests and WebSockets count towards their key's limits."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: ServerParts = scope["app"].state.ropeswitch
        if scope["type"] == "http":
            with connection.serving(scope, receive) as receiving:
                await self._http(parts, scope, receiving, send)
        elif scope["type"] == "websocket":
            await self._websocket(parts.front, scope, receive, send)
        else:
            # The app's startup, before the server accepts any connection.
            connection.limit(scope["app"].state.server.config, parts.front)
            await self.app(scope, receive, send)

    async def _http(self, parts: ServerParts, scope: Scope, receive: Receive, send: Send) -> None:
        path, log = state.route_path(scope), parts.access_log
        if log is not None and log.leaves_out(path):
            log = None
        context = RequestContext(request_id=state.identify_request(scope) if parts.request_ids else None)
        started = time.perf_counter()
        token = current.set(context)
        try:
            await self._checked(parts, context, scope, path, receive, send)
        except asyncio.CancelledError:
            context.sent.stopped = True
            raise
        finally:
            current.reset(token)
            if log is not None:
                log.write(scope, path, context, time.perf_counter() - started)

    async def _checked(
        self, parts: ServerParts, context: RequestContext, scope: Scope, path: str, receive: Receive, send: Send
    ) -> None:
        front, posted = parts.front, scope["method"] == "POST"
        body = Body(scope, receive, context, front.max_body_bytes, front.body_timeout)
        answer = Answer(send, context, body, scope, path)
        try:
            context.key = front.identify(scope, path)
            context.client = context.key or state.address_digest(scope)
            front.check_headers(scope)
            body.check_declared()
            if posted:
                front.queue.begin(context)
        except RefusedError as error:
            context.refuse(error)
            await answer.refuse(error.refusal)
            return
        try:
            if context.sequences:
                # Of a client's burst, a few requests begin in each turn of the event loop.
                await front.turns.wait(context.client)
            with LIFE.request(path):
                if path in METRICS_PATHS and parts.scheduling_metrics is not None:
                    await parts.scheduling_metrics.refresh()
                await self.app(scope, body.receive, answer.send)
        except RefusedError as error:
            # Raised by us, or by the body in a handler that reads it directly.
            if answer.started:
                raise
            await answer.refuse(error.refusal)
        except ClientDisconnect:
            pass  # in the middle of its body; no client is left to answer
        except Exception as error:
            if not await answer.fail(error):
                # The server logs it; the app's outermost handler sees that it was answered.
                raise
        finally:
            if posted and path in fates.PATHS and parts.length_metrics is not None and not context.entered.sequences:
                fates.count(context, parts.length_metrics)
            front.held_bodies.add(context.client, -context.held_bytes)
            front.queue.end(context)

    async def _websocket(self, front: state.FrontState, scope: Scope, receive: Receive, send: Send) -> None:
        path = state.route_path(scope)
        try:
            context = RequestContext(client=front.identify(scope, path) or state.address_digest(scope))
            if state.is_metrics(path):
                raise RefusedError(Refusal("invalid", 404, None, "The metrics have no WebSocket. Send GET /metrics."))
            front.check_headers(scope)
            front.queue.begin(context)
        except RefusedError as error:
            refused(error.refusal.reason, None)
            await refuse_websocket(error.refusal, receive, send)
            return
        try:
            with LIFE.request(path):
                await self.app(scope, receive, send)
        except RefusedError as error:
            # The server is shutting down.
            await refuse_websocket(error.refusal, receive, send)
        finally:
            front.queue.end(context)
