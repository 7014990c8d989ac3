"""An engine that hangs is noticed, logged and shown by the probes, and so is its recovery."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from ropeswitch.server.app import health
from ropeswitch.server.app.health import EngineWatch
from tests.passkey_tiny import SERVED
from tests.server.asking import named, streaming, wait_until
from tests.server.observed import Log
from tests.server.running import Server, running
from tests.server.test_life_cycle import FLAGS, LONG, reason

STALL = 2.0


class Engine:
    """Answers while ``steps`` is set; the watch has a second engine, which always answers."""

    def __init__(self, timeout: float | None) -> None:
        self.steps = asyncio.Event()
        self.steps.set()
        self.requests = 1
        self.watch = EngineWatch({0: partial(asyncio.sleep, 0), 1: self.steps.wait}, lambda: self.requests, timeout)
        self.watching = asyncio.create_task(self.watch.watch())


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SECONDS", 0.01)


def test_a_stall_is_logged_once_and_ends_with_the_next_step(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        engine = Engine(timeout=0.2)
        await asyncio.sleep(0.3)
        assert not engine.watch.is_stalled()
        engine.steps.clear()
        await asyncio.sleep(0.5)
        assert engine.watch.is_stalled() and not engine.watch.is_stalled(timeouts=5)
        # Its clients leave, but it still hangs.
        engine.requests = 0
        await asyncio.sleep(0.8)
        assert engine.watch.is_stalled(timeouts=5) and len(caplog.records) == 1
        engine.steps.set()
        await asyncio.sleep(0.1)
        assert not engine.watch.is_stalled() and len(caplog.records) == 2
        # While it is idle, nobody asks it.
        engine.steps.clear()
        await asyncio.sleep(0.3)
        assert not engine.watch.is_stalled()

    asyncio.run(run())


def test_long_steps_make_the_default_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LEAST_SECONDS", 1.0)

    async def run() -> None:
        engine = Engine(timeout=None)
        assert engine.watch.timeout == 1.0
        engine.steps.clear()
        await asyncio.sleep(0.8)
        engine.steps.set()
        await asyncio.sleep(0.1)
        assert engine.watch.timeout > 3

    asyncio.run(run())


def stop_and_resume(server: Server, title: str) -> None:
    log, [client] = Log(server), streaming(server, LONG)
    [process] = named(server, title)
    process.suspend()
    try:
        wait_until(lambda: server.get("/health/ready").status == 503, "not ready", 20)
        assert server.get("/health/live").status == 200
        wait_until(lambda: f"has ended no step for {STALL:.0f} s" in log.text(), "logged", 5)
        wait_until(lambda: server.get("/health/live").status == 503, "not live", 40)
        assert server.get("/health").status == 503
    finally:
        process.resume()
    paths = ("/health/ready", "/health/live", "/health")
    wait_until(lambda: all(server.get(path).status == 200 for path in paths), "ready", 20)
    assert reason(client) == "length"
    wait_until(lambda: "ended a step after" in log.text(), "logged", 5)


@pytest.mark.full
def test_a_stopped_engine_or_worker_fails_the_probes_until_it_goes_on(tmp_path: Path) -> None:
    flags = [*SERVED, *FLAGS, "--stall-timeout", f"{STALL:g}", "--disable-log-stats"]
    with running(tmp_path, *flags) as server:
        stop_and_resume(server, "EngineCore")
        stop_and_resume(server, "Worker")
