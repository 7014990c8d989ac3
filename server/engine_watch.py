"""``vllm.v1.engine.async_llm.AsyncLLM.shutdown``: wrapped to tell an engine that died from one that was told to leave.

vLLM looks for a dead engine every five seconds, and then leaves as if it had been told to, with exit code 0. This looks more
often, and lets the command end with an error, so that whatever started it starts it again.
"""

import asyncio
from collections.abc import Callable
from typing import Any

SECONDS = 0.25


class EngineWatch:
    """One per API server process.

    Attributes:
        died: Whether the engine died while the server ran.
    """

    def __init__(self) -> None:
        self.died = False
        self._told = False
        self._task: asyncio.Task[None] | None = None

    def start(self, engine_client: Any, state: Any, *, keep_alive: bool) -> None:
        """Look until the engine dies or is told to leave; then have the server leave too.

        Args:
            engine_client: ``vllm.engine.protocol.EngineClient``.
            state: The app's state, in which vLLM puts its ``uvicorn.Server``.
            keep_alive: Keep a server without an engine running, to answer 503.
        """
        engine_client.shutdown = self._noting(engine_client)
        self._task = asyncio.get_running_loop().create_task(self._look(engine_client, state, keep_alive))

    def _noting(self, engine_client: Any) -> Callable[..., Any]:
        upstream = engine_client.shutdown

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            # A server that leaves always comes here, also because its engine is dead.
            self.died = self.died or (engine_client.errored and not self._told)
            self._told = True
            return upstream(*args, **kwargs)

        return shutdown

    async def _look(self, engine_client: Any, state: Any, keep_alive: bool) -> None:
        while not engine_client.errored:
            await asyncio.sleep(SECONDS)
        # There is no server yet where the engine dies first; vLLM then finds it dead when the server starts.
        server = getattr(state, "server", None)
        if not self._told and not keep_alive and server is not None:
            server.should_exit = True


WATCH = EngineWatch()
