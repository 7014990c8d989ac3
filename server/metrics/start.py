"""Starts the per-length metrics in an API server process, once its engine client exists."""

from collections.abc import Callable
from typing import Any

from ropeswitch.model_patches.switch.placement import EngineLadder
from ropeswitch.server.front import refusal
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.outputs import OutputWatch, StepLogger


def start(engine_client: Any, ladder: EngineLadder) -> LengthMetrics | None:
    """Measure every request of a process from now on, and count those that its front refuses.

    Args:
        engine_client: ``vllm.v1.engine.async_llm.AsyncLLM``, which has had no request yet.
        ladder: Its engines' ladder.

    Returns:
        The metrics; None with ``--disable-log-stats``, where vLLM measures nothing.
    """
    processor = engine_client.output_processor
    if engine_client.logger_manager is None:
        return None
    metrics = LengthMetrics(ladder.sets, engine_client.model_config.served_model_name)
    processor.ropeswitch = OutputWatch(ladder, metrics, engine_finder(engine_client.engine_core))
    # Last, so that a step is in vLLM's metrics before it is in ours.
    engine_client.logger_manager.stat_loggers.append(StepLogger(metrics))
    refusal.listeners.append(metrics.count_rejection)
    return metrics


def engine_finder(client: Any) -> Callable[[str], int | None]:
    """Return a function from a request's internal ID to the index of its engine, or to None if none is chosen yet.

    Args:
        client: ``vllm.v1.engine.core_client.AsyncMPClient``, which knows one engine, or ``DPLBAsyncMPClient``, which has
            chosen one of several.
    """
    indexes: dict[bytes, int] = dict(zip(client.core_engines, client.engine_ranks_managed, strict=True))
    if len(indexes) == 1:
        [only] = indexes.values()
        return lambda _: only

    def find(request_id: str) -> int | None:
        engine = client.reqs_in_flight.get(request_id)
        return None if engine is None else indexes[engine]

    return find
