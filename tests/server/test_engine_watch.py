"""An engine that died is distinguished from a shutdown, whichever is seen first."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine.async_llm import AsyncLLM

from ropeswitch.server.app import engine_client, life_cycle
from ropeswitch.server.app.engine_client import RopeClient
from ropeswitch.server.app.life_cycle import EngineWatch


def client() -> Any:
    fake = SimpleNamespace(errored=False)
    # As upstream's: an engine that shuts down counts as one with an error from then on.
    fake.stop = lambda: setattr(fake, "errored", True)
    return fake


@pytest.mark.parametrize("keep_alive", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_who_ended_it(monkeypatch: pytest.MonkeyPatch, dies: bool, keep_alive: bool) -> None:
    monkeypatch.setattr(life_cycle, "SECONDS", 0.001)
    watch, engine, server = EngineWatch(), client(), SimpleNamespace(should_exit=False)

    def shutdown() -> None:
        watch.leave(engine)
        engine.stop()

    async def serve() -> None:
        watch.start(engine, SimpleNamespace(server=server), keep_alive=keep_alive)
        await asyncio.sleep(0.01)
        assert not server.should_exit
        if dies:
            engine.errored = True
        else:
            shutdown()
        await asyncio.sleep(0.05)
        assert server.should_exit == (dies and not keep_alive)
        # A server that leaves takes its engine down, dead or not.
        shutdown()

    asyncio.run(serve())
    assert watch.died == dies


def test_the_client_s_shutdown_waits_for_the_requests_in_flight_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(engine_client, "WATCH", SimpleNamespace(leave=lambda client: calls.append(client)))
    monkeypatch.setattr(AsyncLLM, "shutdown", lambda self, timeout=None: calls.append(timeout))
    upstream: Any = RopeClient.__new__(RopeClient)
    upstream.shutdown(timeout=5)
    assert calls == [upstream, 5]
    # Collected, it shuts down again, with no one left to be asked.
    monkeypatch.undo()
