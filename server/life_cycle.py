"""The life of one API server process: ready, then leaving, when running requests finish and new ones are refused.

vLLM stops its engine as soon as it is told to leave, and its HTTP server only then; in between requests are answered with
500, and where several API servers share an engine their streams break off. Here ``AsyncLLM.shutdown``, which a server that
is told to leave calls first (``engine_client.py``), waits for the requests in flight; where another process of the server
has died (``deaths.py``), it ends them with errors at once.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from ropeswitch.server.front.refusal import LEAVING, RefusedError

router = APIRouter()

# Seconds that requests have for their last words when their time is over.
LAST_WORDS = 2.0
# Paths that answer as long as the process does.
_ALWAYS = frozenset({"/health/live", "/health/ready", "/metrics", "/metrics/"})


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

    def leave(self, seconds: float, abort: Callable[[], object]) -> None:
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
