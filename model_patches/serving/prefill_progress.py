"""How much of their prompts an engine has computed; the engine core's utility ``prefill_progress`` (``step_times.py``)."""

from collections.abc import Sequence
from typing import Any


def prefill_progress(scheduler: Any, request_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Of each request that the engine knows: prompt tokens that are computed or found in the cache, and those found.

    Args:
        scheduler: ``vllm.v1.core.sched.scheduler.Scheduler``; what it has given to a step counts as computed.
        request_ids: The engine's own IDs.
    """
    found = {}
    for request_id in request_ids:
        if (request := scheduler.requests.get(request_id)) is not None:
            # Taken away with the first token.
            cached = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
            found[request_id] = (min(request.num_computed_tokens, request.num_prompt_tokens), cached)
    return found
