"""The outer of our two ASGI middlewares: makes each request's context, and admits, refuses and logs requests.

vLLM adds it to the app of every API server process, by its name in ``--middleware``, outside everything else. Its steps for
an HTTP request, in order:

1. Make the request's context.
2. Check its key, the declared size of its body and the limits of its key, before any of the body is read.
3. Refuse it if the server is shutting down.
4. Read the scheduler's gauges, for ``/metrics``.
5. Run the app, with limits on the body and with errors converted to OpenAI's shape.
6. Release its tickets and its key, and count it if it never reached an engine.
7. Write its line in the access log.

The inner one is ``inner.py``.
"""

import time
import uuid

from fastapi import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ropeswitch.server.app.life_cycle import LIFE
from ropeswitch.server.app.parts import ServerParts
from ropeswitch.server.front import connection, routes
from ropeswitch.server.front.answer import REQUEST_ID, Answer, refuse_websocket
from ropeswitch.server.front.body import Body
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.refusal import (
    NO_WEBSOCKET,
    RefusedError,
    header_too_long,
    priority_out_of_range,
    refused,
    too_many_headers,
)
from ropeswitch.server.front.state import FrontState
from ropeswitch.server.metrics import fates
from ropeswitch.server.metrics.scheduling_metrics import PATHS as METRICS_PATHS
from ropeswitch.server.metrics.scheduling_metrics import fresh

# vLLM reads it in place of the body's ``priority``.
PRIORITY = b"x-vllm-priority"
# Maximum bytes of a client's x-request-id; the access log cuts it there too.
LONGEST_ID = 256


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
            connection.limit(scope["app"].state.server.config, parts.front.body_timeout)
            await self.app(scope, receive, send)

    async def _http(self, parts: ServerParts, scope: Scope, receive: Receive, send: Send) -> None:
        path, log = routes.route_path(scope), parts.access_log
        if log is not None and log.leaves_out(path):
            log = None
        context = RequestContext(
            request_id=_identify(scope) if parts.request_ids else None,
            keeps_prompts=log is not None and log.keeps_prompts,
        )
        started = time.perf_counter()
        token = current.set(context)
        try:
            await self._checked(parts, context, scope, path, _noting(receive, context), send)
        except Exception:
            # The app's outermost handler sends a 500 if nothing was sent.
            context.sent.status = context.sent.status or 500
            raise
        except BaseException:
            context.sent.stopped = True
            raise
        finally:
            current.reset(token)
            if log is not None:
                log.write(scope, context, time.perf_counter() - started)

    async def _checked(
        self, parts: ServerParts, context: RequestContext, scope: Scope, path: str, receive: Receive, send: Send
    ) -> None:
        front, counted = parts.front, scope["method"] == "POST" and not routes.is_open(path)
        body = Body(scope, receive, context, front.max_body_bytes, front.body_timeout)
        answer = Answer(send, context, body, scope, path)
        try:
            key = front.identify(scope, path)
            _check_headers(scope, front.max_headers)
            body.check_declared()
            if counted:
                front.count(key)
        except RefusedError as error:
            context.refuse(error)
            if error.refusal.status != 413:
                await body.take_small()
            await answer.refuse(error.refusal)
            return
        try:
            await self._app(parts, scope, path, body, answer)
        finally:
            posted = scope["method"] == "POST" and path in fates.PATHS
            if posted and parts.length_metrics is not None and not context.entered.sequences:
                fates.count(context, parts.length_metrics)
            front.queue.settle(context.entered.tickets)
            if counted:
                front.key_limits.give_back(key)

    async def _app(self, parts: ServerParts, scope: Scope, path: str, body: Body, answer: Answer) -> None:
        try:
            with LIFE.request(path):
                if path in METRICS_PATHS:
                    scope = await fresh(parts.scheduling_metrics, scope)
                await self.app(scope, body.receive, answer.send)
        except RefusedError as error:
            # Raised by us, or by the body in a handler that reads it directly.
            if answer.started:
                raise
            await answer.refuse(error.refusal)
        except HTTPException:
            raise
        except ClientDisconnect:
            pass  # in the middle of its body; no client is left to answer
        except Exception:
            if not answer.started:
                await answer.fail()
            # The server logs it; the app's outermost handler sees that it was answered.
            raise

    async def _websocket(self, front: FrontState, scope: Scope, receive: Receive, send: Send) -> None:
        path = routes.route_path(scope)
        try:
            key = front.identify(scope, path)
            if routes.is_metrics(path):
                raise RefusedError(NO_WEBSOCKET)
            _check_headers(scope, front.max_headers)
            front.count(key)
        except RefusedError as error:
            refused(error.refusal.reason, None)
            await refuse_websocket(error.refusal, scope.get("extensions") or (), receive, send)
            return
        try:
            with LIFE.request(path):
                await self.app(scope, receive, send)
        except RefusedError as error:
            # The server is shutting down.
            await refuse_websocket(error.refusal, (), receive, send)
        finally:
            front.key_limits.give_back(key)


def _check_headers(scope: Scope, most: int) -> None:
    """Check the number of headers, at most ``most``, and those that the engine reads.

    Raises:
        RefusedError: for too many headers, a request ID that is too long, or a priority that the engine cannot be sent.
    """
    if len(scope["headers"]) > most:
        raise RefusedError(too_many_headers(most))
    for name, value in scope["headers"]:
        if name == REQUEST_ID and len(value) > LONGEST_ID:
            # vLLM repeats it in every chunk of a stream and in every message to and from the engine.
            raise RefusedError(header_too_long("x-request-id", LONGEST_ID))
        if name == PRIORITY and value:
            priority = value.decode("latin-1")
            try:
                number = int(priority)
            except ValueError:
                continue  # vLLM ignores it
            if not -(2**63) <= number < 2**63:
                raise RefusedError(priority_out_of_range(priority))


def _identify(scope: Scope) -> bytes | None:
    """Return a request's ID, a new one if it has none; vLLM copies it to the response's header and the answer's ``id``.

    Returns None if it is longer than :data:`LONGEST_ID`, so that the refusal does not repeat it.
    """
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), None)
    if given is None:
        given = uuid.uuid4().hex.encode()
        scope["headers"] = [*scope["headers"], (REQUEST_ID, given)]
    return bytes(given) if len(given) <= LONGEST_ID else None


def _noting(receive: Receive, context: RequestContext) -> Receive:
    async def noting() -> Message:
        message = await receive()
        # The server also sends this after a complete response, and after an error the client has its whole response.
        if message["type"] == "http.disconnect" and not context.sent.whole and (context.sent.final_status or 200) < 400:
            context.sent.left = True
        return message

    return noting
