"""What length-aware scheduling adds to ``/metrics``; ``test_length_metrics.py`` has a running server's."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from vllm.v1.engine.exceptions import EngineDeadError

from ropeswitch.server.app import life_cycle
from ropeswitch.server.app.engine_utilities import asking
from ropeswitch.server.app.vllm_serve import PlainServer
from ropeswitch.server.front.front import Front
from ropeswitch.server.metrics import scheduling_metrics
from ropeswitch.server.metrics.scheduling_metrics import GAUGES, SchedulingMetrics
from tests.server.front.parts import parts, server_parts

NAMES = [name for name, _ in GAUGES.values()]


def report(**changes: float) -> dict[str, float]:
    return {"target_seconds": 0.05, "error": 0.1, "next_set_tokens": 16, "remaining_prefill_seconds": 2.5} | changes


async def answer() -> dict[str, float]:
    return report()


def values(registry: CollectorRegistry, engine: str = "0") -> list[float | None]:
    labels = {"model_name": "m", "engine": engine}
    return [registry.get_sample_value(name, labels) for name in NAMES]


def test_an_engine_in_a_long_step_answers_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_metrics, "SECONDS", 0.05)
    registry = CollectorRegistry()

    async def scrape() -> None:
        step, asked = asyncio.Event(), []

        async def busy() -> dict[str, float]:
            asked.append(1)
            await step.wait()
            return report(error=0.7)

        metrics = SchedulingMetrics({0: busy, 1: answer}, "m", registry)
        for _ in range(3):
            await asyncio.wait_for(metrics.refresh(), 1)
        assert len(asked) == 1, "questions pile up in an engine that does not answer"
        assert values(registry, "0") == [None, None, None, None]
        assert values(registry, "1") == [0.05, 0.1, 16, 2.5]
        step.set()
        await asyncio.sleep(0.01)
        assert values(registry, "0") == [0.05, 0.7, 16, 2.5]

    asyncio.run(scrape())


def test_engines_that_do_not_answer_keep_their_last_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: dict[bytes, Any] = {b"\4\0": report(), b"\5\0": report(error=0.2)}

    async def call(method: str, *, engine: bytes) -> Any:
        if isinstance(answers[engine], Exception):
            raise answers[engine]
        return answers[engine]

    core = SimpleNamespace(engine_ranks_managed=[4, 5], core_engines=list(answers), _call_utility_async=call)
    registry = CollectorRegistry()
    metrics = SchedulingMetrics(asking(SimpleNamespace(engine_core=core), "scheduling_report"), "m", registry)
    asyncio.run(metrics.refresh())
    answers[b"\4\0"], answers[b"\5\0"] = EngineDeadError(), Exception("Server shutting down")
    with monkeypatch.context() as leaving:
        leaving.setattr(life_cycle.LIFE, "leaving", True)
        asyncio.run(metrics.refresh())
    assert not caplog.records
    answers[b"\5\0"] = Exception("Call to scheduling_report method failed: ")
    asyncio.run(metrics.refresh())
    assert (values(registry, "4"), values(registry, "5")) == ([0.05, 0.1, 16, 2.5], [0.05, 0.2, 16, 2.5])
    assert ["scheduling_report: Call to" in each.message for each in caplog.records] == [True]


@pytest.mark.parametrize("middleware", [Front, PlainServer])
def test_only_metrics_asks_the_engines(middleware: Any) -> None:
    """Behind a proxy under a prefix, which may or may not take the prefix away."""
    app, metrics = FastAPI(), SimpleNamespace(refresh=AsyncMock())
    app.add_middleware(middleware)
    app.state.ropeswitch = server_parts(parts(), scheduling_metrics=metrics)

    @app.get("/metrics{_:path}")
    async def refreshed(_: str) -> int:
        return metrics.refresh.await_count

    for root, prefix in (("", ""), ("/prefix", ""), ("/prefix", "/prefix")):
        metrics.refresh.reset_mock()
        http = TestClient(app, root_path=root)
        counts = [http.get(prefix + path).json() for path in ("/metrics/more", "/metrics", "/metrics/")]
        assert counts == [0, 1, 2]
