"""Gauges of length-aware scheduling in vLLM's ``/metrics``, read from the engines on each request."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

# vLLM answers both in the same way.
PATHS = frozenset({"/metrics", "/metrics/"})
# Maximum seconds to wait for the engines, which answer between two steps, so that a scrape does not time out.
SECONDS = 2.0
# Name and help text of each gauge, by its key in an engine's report.
GAUGES = {
    "target_seconds": ("ropeswitch_step_latency_target_seconds", "Target seconds of a step while requests wait."),
    "error": ("ropeswitch_step_time_error_ratio", "Mean relative error of the predicted times of recent steps."),
    "next_set_tokens": (
        "ropeswitch_next_set_prefill_tokens",
        "Tokens prefilled in the background for the next factor set of decoding requests, since the start.",
    ),
    "remaining_prefill_seconds": (
        "ropeswitch_remaining_prefill_seconds",
        "Predicted seconds of prefill that the waiting and running requests still need.",
    ),
}

# Asks one engine; returns None where it is dead or shutting down.
Ask = Callable[[], Awaitable[Mapping[str, float] | None]]


class SchedulingMetrics:
    """The gauges of all engines of an API server process; created after vLLM has set up Prometheus.

    Args:
        engines: Functions that ask an engine for its ``scheduling_report``, by the engine's index; at least one.
        model_name: The value of the label, as in vLLM's own metrics.
        registry: Where to register the gauges.
    """

    def __init__(self, engines: Mapping[int, Ask], model_name: str, registry: CollectorRegistry = REGISTRY) -> None:
        self._engines = engines
        self._model_name = model_name
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._gauges = {
            # Each API server process has its own values; the most recent one is right.
            key: Gauge(name, text, ["model_name", "engine"], multiprocess_mode="mostrecent", registry=registry)
            for key, (name, text) in GAUGES.items()
        }

    async def refresh(self) -> None:
        """Ask every engine and wait, for at most :data:`SECONDS`, until all have answered.

        A late answer still sets the gauges when it arrives; until then its engine is not asked again.
        """
        for index, ask in self._engines.items():
            if index not in self._asked or self._asked[index].done():
                self._asked[index] = asyncio.create_task(self._update(index, ask))
        done, _ = await asyncio.wait(self._asked.values(), timeout=SECONDS)
        for task in done:
            task.result()

    async def _update(self, index: int, ask: Ask) -> None:
        report = await ask()
        if report is not None:
            for key, gauge in self._gauges.items():
                gauge.labels(self._model_name, str(index)).set(report[key])
