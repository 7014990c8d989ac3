"""The ASGI middleware that logs every HTTP request once, when it is over.

vLLM adds it to the app of every API server process, by its name in ``--middleware``, outside the front: what the front
refuses, and requests whose client leaves, are logged like any other.
"""

import time
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ropeswitch.server.access_log.line import Exchange
from ropeswitch.server.access_log.log import AccessLog
from ropeswitch.server.access_log.record import RequestRecord, current_record
from ropeswitch.server.front.routes import route_path


class LogRequests:
    """See the module; it finds the log in the app's state, as ``access_log``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (log := _log(scope)).leaves_out(route_path(scope)):
            await self.app(scope, receive, send)
            return
        record, exchange = RequestRecord(keeps_prompts=log.keeps_prompts), Exchange(time.time())
        started = time.perf_counter()
        token = current_record.set(record)
        try:
            await self.app(scope, _noting_receive(receive, exchange), _noting_send(send, exchange))
        except Exception:
            # The app's own outermost handler answers where nothing was.
            exchange.status = exchange.status or 500
            raise
        except BaseException:
            exchange.stopped = True
            raise
        finally:
            current_record.reset(token)
            exchange.seconds = time.perf_counter() - started
            log.write(scope, exchange, record)


def _log(scope: Scope) -> AccessLog:
    log: AccessLog = scope["app"].state.access_log
    return log


def _noting_receive(receive: Receive, exchange: Exchange) -> Receive:
    async def noting() -> Message:
        message = await receive()
        # The server says so too when it has sent the answer.
        if message["type"] == "http.disconnect" and not exchange.whole:
            exchange.left = True
        return message

    return noting


def _noting_send(send: Send, exchange: Exchange) -> Send:
    # Called for every token of every stream, so there is no coroutine of its own.
    def noting(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            # vLLM answers a client that is gone, too, with 200 and nothing.
            if not exchange.left:
                exchange.status = message["status"]
        elif not message.get("more_body", False):
            exchange.whole = True
        return send(message)

    return noting
