"""The life cycle of an API server process: ready, then leaving, when running requests finish and new ones are refused.

On SIGTERM vLLM stops its engine first and then its HTTP server. In between, requests are answered with 500, and if several
API servers share an engine, their streamed responses break off. Here ``AsyncLLM.shutdown``, which a stopping server calls
first (``engine_client.py`` overrides it), waits for the requests in flight.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from ropeswitch.server.front.refusal import LEAVING, RefusedError

router = APIRouter()

# Seconds that requests have to send their error after the wait.
LAST_WORDS = 2.0
# Paths that are answered until the process exits.
_ALWAYS = frozenset({"/health/live", "/health/ready", "/metrics", "/metrics/"})


class LifeCycle:
    """Counts the requests in flight; one per API server process.

    Attributes:
        leaving: Whether the process is shutting down.
    """

    def __init__(self) -> None:
        self.leaving = False
        self._running = 0
        self._idle = threading.Event()
        self._idle.set()

    @contextmanager
    def request(self, path: str) -> Iterator[None]:
        """Count a request that must be answered before the process leaves; on the event loop's thread only.

        Raises:
            RefusedError: when the process is leaving.
        """
        if path in _ALWAYS:
            yield
            return
        if self.leaving:
            raise RefusedError(LEAVING)
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests that must be answered before the process leaves."""
        return self._running

    def hurry(self) -> None:
        """Make :meth:`leave` stop waiting."""
        self._idle.set()

    def leave(self, seconds: float, abort: Callable[[], object]) -> None:
        """Refuse new requests, and wait for those in flight; not on the event loop's thread.

        Args:
            seconds: Maximum time to wait.
            abort: Ends the remaining requests with errors; they then have :data:`LAST_WORDS` seconds to send them.
        """
        self.leaving = True
        self._idle.wait(seconds)
        if self._running:
            self._idle.clear()
            abort()
            self._idle.wait(LAST_WORDS)


LIFE = LifeCycle()


@router.head("/health", include_in_schema=False)
async def health(request: Request) -> JSONResponse:
    """Answer HEAD requests; vLLM's own route accepts only GET."""
    dead = request.app.state.engine_client.errored
    return _state("dead" if dead else "live", well=not dead)


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live")
async def live(request: Request) -> JSONResponse:
    """Return 200 while the process serves, or 503 if its engine is dead, so that an orchestrator restarts it."""
    dead = request.app.state.engine_client.errored and not LIFE.leaving
    return _state("dead" if dead else "live", well=not dead)


@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready")
async def ready(request: Request) -> JSONResponse:
    """Return 200 if requests are accepted, or 503 if the process is shutting down or its engine is dead."""
    if LIFE.leaving:
        return _state("leaving", well=False)
    dead = request.app.state.engine_client.errored
    return _state("dead" if dead else "ready", well=not dead)


def _state(name: str, *, well: bool) -> JSONResponse:
    return JSONResponse({"status": name}, status_code=200 if well else 503)
