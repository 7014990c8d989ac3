"""The life of one API server process: ready, then leaving, when running requests finish and new ones are refused.

vLLM stops its engine as soon as it is told to leave, and its HTTP server only then; in between requests are answered with
500, and where several API servers share an engine their streams break off. Here ``AsyncLLM.shutdown``, which a server that
is told to leave calls first (``engine_watch.py`` wraps it), waits for the requests in hand; where another process of the
server has died (``deaths.py``), it ends them with errors at once.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ropeswitch.server import deaths, vllm_adapter
from ropeswitch.server.front.routes import route_path

router = APIRouter()

# Seconds that requests have for their last words when their time is over.
LAST_WORDS = 2.0
# Seconds after which a client may expect the next server in this one's place.
RETRY_AFTER = 5
# Paths that answer as long as the process does.
_ALWAYS = frozenset({"/health/live", "/health/ready", "/metrics", "/metrics/"})
# RFC 6455, section 7.4.1, and the registry it names: try again later.
_TRY_AGAIN = 1013


class LifeCycle:
    """One per API server process.

    Attributes:
        leaving: Whether the process was told to leave.
    """

    def __init__(self) -> None:
        self.leaving = False
        self._running = 0
        self._idle = threading.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request that must be answered before the process leaves; on the event loop's thread only."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    def leave(self, seconds: float, abort: Callable[[], None]) -> None:
        """Refuse new requests, and wait until those in hand are answered; on any thread but the event loop's.

        Args:
            seconds: How long they may take.
            abort: Ends those that took longer, which then have :data:`LAST_WORDS` to say so.
        """
        self.leaving = True
        if not self._idle.wait(seconds):
            abort()
            self._idle.wait(LAST_WORDS)


LIFE = LifeCycle()


def draining(engine_client: Any, life: LifeCycle = LIFE) -> Callable[..., None]:
    """``AsyncLLM.shutdown`` that first has the requests in hand answered, within ``--shutdown-timeout``.

    Args:
        engine_client: ``vllm.v1.engine.async_llm.AsyncLLM``, on the running event loop.
        life: This process's.
    """
    upstream, loop = engine_client.shutdown, asyncio.get_running_loop()

    def abort() -> None:
        requests = list(engine_client.output_processor.request_states)
        wait([asyncio.run_coroutine_threadsafe(engine_client.abort(requests, internal=True), loop)], LAST_WORDS)

    def fail() -> None:
        loop.call_soon_threadsafe(vllm_adapter.end_with_errors, engine_client)

    def shutdown(timeout: float | None = None) -> None:
        # When the server has left, it is called again, on the loop's own thread.
        if not (life.leaving or engine_client.errored or loop is _running_loop()):
            if deaths.marked():
                life.leave(0, fail)
            else:
                life.leave(engine_client.vllm_config.shutdown_timeout, abort)
            # Upstream takes an engine that stops while it is listened to for one that died, and logs so.
            if (listening := engine_client.output_handler) is not None:
                loop.call_soon_threadsafe(listening.cancel)
        upstream(timeout=timeout)

    return shutdown


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Gate:
    """The ASGI middleware that counts the requests in hand, and refuses new ones when the process is leaving."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or route_path(scope) in _ALWAYS:
            await self.app(scope, receive, send)
        elif not LIFE.leaving:
            with LIFE.request():
                await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _TRY_AGAIN, "reason": "the server is leaving"})
        else:
            await _refuse(send)


async def _refuse(send: Send) -> None:
    error = {
        "message": "the server is leaving and takes no new requests; try again, and another one will answer",
        "type": "server_error",
        "param": None,
        "code": "server_leaving",
    }
    headers = {"content-type": "application/json", "retry-after": str(RETRY_AFTER), "connection": "close"}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 503, "headers": raw})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})


@router.get("/health/live")
async def live(request: Request) -> JSONResponse:
    """200 as long as the process serves; 503 when its engine is dead, so that it is started again."""
    dead = request.app.state.engine_client.errored and not LIFE.leaving
    return _state("dead" if dead else "live", well=not dead)


@router.get("/health/ready")
async def ready(request: Request) -> JSONResponse:
    """200 when requests are taken; 503 from the moment the process is told to leave, or when its engine is dead.

    Before every worker is patched and warm another process answers 503 (``starting.py``).
    """
    if LIFE.leaving:
        return _state("leaving", well=False)
    dead = request.app.state.engine_client.errored
    return _state("dead" if dead else "ready", well=not dead)


def _state(name: str, *, well: bool) -> JSONResponse:
    return JSONResponse({"status": name}, status_code=200 if well else 503)
