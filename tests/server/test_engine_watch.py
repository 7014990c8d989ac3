"""An engine that died is distinguished from a shutdown, whichever is seen first."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine.async_llm import AsyncLLM

from ropeswitch.server.app import engine_client
from ropeswitch.server.app.engine_client import RopeClient
from ropeswitch.server.app.life_cycle import LifeCycle


def client() -> Any:
    fake = SimpleNamespace(errored=False)
    # As upstream's: an engine that shuts down counts as one with an error from then on.
    fake.stop = lambda: setattr(fake, "errored", True)
    return fake


@pytest.mark.parametrize("dies", [False, True])
def test_who_ended_it(dies: bool) -> None:
    life, engine = LifeCycle(), client()

    def shutdown() -> None:
        life.leave(engine)
        engine.stop()

    async def serve() -> None:
        life.start()
        if dies:
            engine.errored = True
        # A server that leaves takes its engine down, dead or not, and again when it has stopped.
        shutdown()
        shutdown()

    asyncio.run(serve())
    assert life.died == dies


def test_the_client_s_shutdown_waits_for_the_requests_in_flight_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(engine_client, "LIFE", SimpleNamespace(leave=lambda client: calls.append(client)))
    monkeypatch.setattr(AsyncLLM, "shutdown", lambda self, timeout=None: calls.append(timeout))
    upstream: Any = RopeClient.__new__(RopeClient)
    upstream.shutdown(timeout=5)
    assert calls == [upstream, 5]
    # Collected, it shuts down again, with no one left to be asked.
    monkeypatch.undo()
