"""``/health/live`` and ``/health/ready``; an engine that ends no step while requests are in flight makes them 503.

An engine answers utilities between two steps, so one that answers has ended a step. A paused or sleeping one answers too.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from ropeswitch.server.app.life_cycle import LIFE

router = APIRouter()
logger = logging.getLogger(__name__)

# A utility of every engine that only reads a flag.
UTILITY = "is_scheduler_paused"
# Seconds between an answer and the next question, while requests are in flight.
SECONDS = 1.0
# Default of --stall-timeout: this multiple of the longest step so far, and a minimum in seconds.
STEPS = 10
LEAST_SECONDS = 60.0
# A server that has stalled for so many timeouts does not recover by itself.
LIVE_TIMEOUTS = 5


class EngineWatch:
    """Knows for how long an engine has ended no step; one per API server process.

    Args:
        engines: Functions that ask an engine for :data:`UTILITY`, by the engine's index.
        in_flight: Returns the number of requests in the engines.
        timeout: Seconds without a step after which an engine counts as stalled; None for the default.
    """

    def __init__(
        self,
        engines: Mapping[int, Callable[[], Awaitable[object]]],
        in_flight: Callable[[], int],
        timeout: float | None,
    ) -> None:
        self._engines, self._in_flight, self._timeout = engines, in_flight, timeout
        self._longest = 0.0
        self._since: dict[int, float] = {}  # when a question that is not answered was asked

    @property
    def timeout(self) -> float:
        """Seconds without a step after which an engine counts as stalled."""
        return self._timeout or max(LEAST_SECONDS, STEPS * self._longest)

    def is_stalled(self, timeouts: int = 1) -> bool:
        """Whether an engine has ended no step for more than that many timeouts."""
        return any(time.monotonic() - since > timeouts * self.timeout for since in self._since.values())

    async def watch(self) -> None:
        """Ask every engine again and again while requests are in flight, forever; log a stall and its end."""
        await asyncio.gather(*(self._watch(index, ask) for index, ask in self._engines.items()))

    async def _watch(self, index: int, ask: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            if not (requests := self._in_flight()):
                continue
            self._since[index] = time.monotonic()
            answer = asyncio.ensure_future(ask())
            stalled = not (await asyncio.wait([answer], timeout=self.timeout))[0]
            if stalled:
                text = "engine %d has ended no step for %.0f s with requests in flight (%d): /health/ready is 503 now"
                logger.error(text, index, self.timeout, requests)
            await answer
            seconds = time.monotonic() - self._since.pop(index)
            self._longest = max(self._longest, seconds)
            if stalled:
                logger.warning("engine %d ended a step after %.0f s: /health/ready is 200 again", index, seconds)


@router.get("/health")  # replaces vLLM's
@router.api_route("/health/live", methods=["GET", "HEAD"])
async def live(request: Request) -> JSONResponse:
    """Return 200, or 503 for an orchestrator to restart the process: its engine is dead, or has long stalled."""
    return _answer(request, "live", "live", LIVE_TIMEOUTS)


@router.api_route("/health/ready", methods=["GET", "HEAD"])
async def ready(request: Request) -> JSONResponse:
    """Return 200 if requests are accepted, or 503: the process is shutting down, or its engine is dead or stalled."""
    return _answer(request, "ready", "leaving", 1)


def _answer(request: Request, well: str, leaving: str, timeouts: int) -> JSONResponse:
    state, status = request.app.state, well
    if LIFE.leaving:
        status = leaving
    elif state.engine_client.errored:
        status = "dead"
    elif state.ropeswitch.engine_watch.is_stalled(timeouts):
        status = "stalled"
    return JSONResponse({"status": status}, 200 if status == well else 503)
