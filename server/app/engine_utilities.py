"""Calls utilities of engines and workers: reports of ladders and scheduling, and prompt progress."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.set_keys import ladder_digest
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.app.life_cycle import LIFE

logger = logging.getLogger(__name__)


def check_reports(reports: Sequence[tuple[int, str]], settings: RopeSettings) -> None:
    """Check by the ``ladder_report`` of each worker that it rotates by the server's ladder: its node may have another.

    Raises:
        UnsupportedError: naming the worker.
    """
    if not reports:
        raise UnsupportedError("ladder_report: no worker answered, so their ladders cannot be verified")
    for rank, digest in reports:
        if digest != ladder_digest(settings):
            raise UnsupportedError(
                f"ladder_report: worker {rank} rotates by another ladder than the server; start every node with the same one"
            )


async def worker_reports(engine_client: Any) -> list[tuple[int, str]]:
    """Return the ``ladder_report`` of every worker of every engine."""
    # `EngineClient.collective_rpc` calls every data parallel engine but returns only the first one's results.
    per_engine = await engine_client.engine_core.call_utility_all_async(
        "collective_rpc", "ladder_report", None, (), None
    )
    return [(rank, digest) for reports in per_engine for rank, digest in reports]


def asking(engine_client: Any, utility: str) -> dict[int, Callable[[], Awaitable[Any]]]:
    """Return functions that ask an engine for a utility without arguments, by the engine's index; see :func:`_utility`."""
    client = engine_client.engine_core
    engines = zip(client.engine_ranks_managed, client.core_engines, strict=True)
    return {index: partial(_utility, client, engine, utility) for index, engine in engines}


async def _utility(client: Any, engine: bytes, name: str, *arguments: Any) -> Any:
    """Return the result of an engine's utility; None without one, which is logged unless the engine or this process ends."""
    try:
        return await client._call_utility_async(name, *arguments, engine=engine)
    except Exception as error:
        # An engine that shuts down refuses every utility; figures are not worth a failed answer.
        if not LIFE.leaving and not vllm_adapter.is_dead_engine(error):
            logger.warning("an engine did not answer %s: %s", name, error)
        return None


async def _progress(
    client: Any, request_ids: Sequence[str], *, predicts: bool
) -> dict[str, tuple[int, int, float | None]]:
    """Return the ``prefill_progress`` (``model_patches/scheduling/step_times.py``) of the requests that an engine knows."""
    asked = (
        _utility(client, engine, "prefill_progress", list(request_ids), predicts) for engine in client.core_engines
    )
    return {
        request_id: tuple(found) for each in await asyncio.gather(*asked) for request_id, found in (each or {}).items()
    }


async def computed_tokens(engine_client: Any, request_ids: Sequence[str]) -> dict[str, int]:
    """Return the computed or cached prompt tokens, by internal ID, of the requests that an engine knows."""
    progress = await _progress(engine_client.engine_core, request_ids, predicts=False)
    return {request_id: tokens for request_id, (tokens, *_) in progress.items()}


async def prefill_progress(engine_client: Any, request_id: str) -> tuple[int, int, float | None]:
    """Return the ``prefill_progress`` of a request's furthest answer; zeros and None if no engine knows it."""
    internal = engine_client.output_processor.external_req_ids.get(request_id)
    progress = await _progress(engine_client.engine_core, internal, predicts=True) if internal else {}
    return max(progress.values(), default=(0, 0, None), key=lambda each: each[0])
