"""Answers the requests in flight before an engine client shuts down (``engine_client.py``), and detects a dead engine.

vLLM checks for a dead engine every five seconds and then exits with code 0, as after a shutdown. This module checks every
quarter of a second, and the command exits with an error, so that its supervisor restarts it.
"""

import asyncio
import signal
import sys
from concurrent.futures import wait
from typing import Any

from ropeswitch.server.app.life_cycle import LAST_WORDS, LIFE, LifeCycle

SECONDS = 0.25


class EngineWatch:
    """Watches the engine of an API server process; one per process.

    Args:
        life: The process's life cycle.

    Attributes:
        died: Whether the engine died while the server ran.
    """

    def __init__(self, life: LifeCycle = LIFE) -> None:
        self.died = False
        self._life = life
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, engine_client: Any, state: Any, *, keep_alive: bool) -> None:
        """Check until the engine dies or shuts down; then shut the server down too.

        Args:
            engine_client: ``vllm.v1.engine.async_llm.AsyncLLM``, on the running event loop.
            state: The app's state, where vLLM stores its ``uvicorn.Server``.
            keep_alive: Whether a server whose engine has died keeps running, and answers 503.
        """
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._look(engine_client, state, keep_alive))

    def leave(self, engine_client: Any) -> None:
        """Wait up to ``--shutdown-timeout`` for the requests in flight, before the client shuts its engine down.

        A server that shuts down always calls this, even if its engine is dead. Before :meth:`start` it does nothing.

        Args:
            engine_client: ``vllm.v1.engine.async_llm.AsyncLLM``.
        """
        if (loop := self._loop) is None:
            return
        self.died = self.died or (engine_client.errored and not self._stopping)
        self._stopping = True
        # Once the server has stopped, it is called again, on the loop's own thread.
        if self._life.leaving or engine_client.errored or loop is _running_loop():
            return

        def abort() -> None:
            requests = list(engine_client.output_processor.request_states)
            wait([asyncio.run_coroutine_threadsafe(engine_client.abort(requests, internal=True), loop)], LAST_WORDS)

        seconds = engine_client.vllm_config.shutdown_timeout
        if seconds and (count := self._life.in_flight):
            requests = f"{count} request{'s' if count > 1 else ''} in flight"
            print(f"ropeswitch: waiting up to {seconds} s for {requests}; Ctrl-C again ends the wait", file=sys.stderr)
        # vLLM's own handler does nothing the second time.
        loop.call_soon_threadsafe(loop.add_signal_handler, signal.SIGINT, self._life.hurry)
        self._life.leave(seconds, abort)
        # Upstream takes an engine that stops while its output is being read for a dead one, and logs that.
        if (listening := engine_client.output_handler) is not None:
            loop.call_soon_threadsafe(listening.cancel)

    async def _look(self, engine_client: Any, state: Any, keep_alive: bool) -> None:
        while not engine_client.errored:
            await asyncio.sleep(SECONDS)
        # If the engine dies before the server exists, vLLM finds it dead when the server starts.
        server = getattr(state, "server", None)
        if not self._stopping and not keep_alive and server is not None:
            server.should_exit = True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


WATCH = EngineWatch()
