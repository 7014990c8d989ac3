"""Calls utilities of engines and workers: reports of patches and scheduling, and prompt progress."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ropeswitch.server.app import vllm_adapter

# The answer of an engine that is shutting down to every utility call; upstream raises it as a bare Exception.
_LEAVING = "Server shutting down"


async def worker_reports(engine_client: Any) -> list[dict[str, Any]]:
    """Return the ``patch_report`` of every worker of every engine.

    ``EngineClient.collective_rpc`` calls every data parallel engine but returns only the first one's results.
    """
    per_engine = await engine_client.engine_core.call_utility_all_async(
        "collective_rpc", "patch_report", None, (), None
    )
    return [report for reports in per_engine for report in reports]


def scheduling_reports(engine_client: Any) -> dict[int, Callable[[], Awaitable[dict[str, float] | None]]]:
    """Return functions that ask an engine for its ``scheduling_report`` (``step_times.py``), by the engine's index.

    Each returns None if its engine is dead or shutting down.
    """
    client = engine_client.engine_core
    engines = zip(client.engine_ranks_managed, client.core_engines, strict=True)
    return {index: partial(_scheduling_report, client, engine) for index, engine in engines}


async def _scheduling_report(client: Any, engine: bytes) -> dict[str, float] | None:
    report: dict[str, float] | None = await _utility(client, engine, "scheduling_report")
    return report


async def _utility(client: Any, engine: bytes, name: str, *arguments: Any) -> Any:
    """Return the result of an engine's utility; None if the engine is dead or shutting down."""
    try:
        return await client._call_utility_async(name, *arguments, engine=engine)
    except Exception as error:
        if str(error) != _LEAVING and not vllm_adapter.is_dead_engine(error):
            raise
        return None


def computed_tokens(engine_client: Any) -> Callable[[list[str]], Awaitable[dict[str, int]]]:
    """Make a function that returns the computed or cached prompt tokens, by internal request ID.

    It leaves out requests that no engine knows.
    """
    client = engine_client.engine_core

    async def computed(request_ids: list[str]) -> dict[str, int]:
        asked = (_utility(client, engine, "prefill_progress", request_ids) for engine in client.core_engines)
        answers = await asyncio.gather(*asked)
        return {request_id: tokens for each in answers for request_id, (tokens, *_) in (each or {}).items()}

    return computed


def prefill_progress(engine_client: Any) -> Callable[[str], Awaitable[tuple[int, int, float | None]]]:
    """Make a function that returns a request's ``prefill_progress`` (``model_patches/serving/prefill_progress.py``).

    Of a request with several answers, the furthest one counts. It is (0, 0, None) if no engine knows the request.
    """
    client, processor = engine_client.engine_core, engine_client.output_processor

    async def progress(request_id: str) -> tuple[int, int, float | None]:
        furthest: tuple[int, int, float | None] = (0, 0, None)
        if internal := processor.external_req_ids.get(request_id):
            for engine in client.core_engines:
                found = await _utility(client, engine, "prefill_progress", list(internal))
                furthest = max([furthest, *(found or {}).values()], key=lambda each: each[0])
        processed, cached, seconds = furthest
        return processed, cached, seconds

    return progress
