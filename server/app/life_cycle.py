"""The life cycle of an API server process: ready, then leaving, when running requests finish and new ones are refused.

On SIGTERM vLLM stops its engine first and then its HTTP server, so requests in between are answered with 500. Here
``AsyncLLM.shutdown``, which a stopping server calls first (``engine_client.py`` overrides it), waits for the requests in
flight. When its engine dies, vLLM exits with code 0, as after a normal shutdown; the command distinguishes the two and exits
with an error, so that its supervisor restarts it.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

from ropeswitch.server.front.refusal import LEAVING, RefusedError

# Seconds that requests have to send their error after the wait.
LAST_WORDS = 2.0
# Paths that are answered until the process exits.
_ALWAYS = frozenset({"/health/live", "/health/ready", "/metrics", "/metrics/"})


class LifeCycle:
    """Counts the requests in flight, and lets them finish before the engine shuts down; one per API server process.

    Attributes:
        leaving: Whether the process is shutting down.
        in_flight: Requests that must be answered before the process leaves.
        died: Whether the engine died while the server ran.
    """

    def __init__(self) -> None:
        self.leaving = self.died = self._stopping = False
        self.in_flight = 0
        self._idle = threading.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None

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
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    def start(self) -> None:
        """Wait for the requests of this event loop from now on, when the process leaves."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def leave(self, engine_client: Any) -> None:
        """Wait up to ``--shutdown-timeout`` for the requests in flight, before the client shuts its engine down.

        A server that shuts down always calls this, even if its engine is dead. Before :meth:`start` it does nothing.
        """
        if (loop := self._loop) is None:
            return
        self.died = self.died or (engine_client.errored and not self._stopping)
        self._stopping = True
        # Once the server has stopped, it is called again, on the loop's own thread.
        if self.leaving or engine_client.errored or threading.get_ident() == self._thread:
            return
        seconds = engine_client.vllm_config.shutdown_timeout
        if seconds and (count := self.in_flight):
            requests = f"{count} request{'s' if count > 1 else ''} in flight"
            print(f"ropeswitch: waiting up to {seconds} s for {requests}; Ctrl-C again ends the wait", file=sys.stderr)
        # vLLM's own handler does nothing the second time.
        loop.call_soon_threadsafe(loop.add_signal_handler, signal.SIGINT, self._idle.set)
        self.leaving = True
        self._idle.wait(seconds)
        if self.in_flight:
            self._idle.clear()
            # They end with errors, and have a moment to send these.
            abort = engine_client.abort(list(engine_client.output_processor.request_states), internal=True)
            wait([asyncio.run_coroutine_threadsafe(abort, loop)], LAST_WORDS)
            self._idle.wait(LAST_WORDS)
        # Upstream takes an engine that stops while its output is being read for a dead one, and logs that.
        if (listening := engine_client.output_handler) is not None:
            loop.call_soon_threadsafe(listening.cancel)


LIFE = LifeCycle()
