"""The engine core utility ``prefill_progress``: reports how much of a prompt is computed, and how long the rest takes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


def prefill_progress(scheduler: Any, request_ids: Sequence[str]) -> dict[str, tuple[int, int, float | None]]:
    """Return how many prompt tokens of each known request are computed or cached, how many cached, and the others' seconds.

    Args:
        scheduler: The core's scheduler, which predicts the seconds or returns None; scheduled tokens count as computed.
        request_ids: The engine's own request IDs.
    """
    found = {}
    for request_id in request_ids:
        if (request := scheduler.requests.get(request_id)) is not None:
            # Upstream drops these statistics at the first token.
            cached = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
            processed = min(request.num_computed_tokens, request.num_prompt_tokens)
            found[request_id] = processed, cached, scheduler.prefill_seconds(request)
    return found


def reporting_progress(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``EngineCore._initialize_effective_attention_block_size``, which runs once the scheduler exists.

    Adds the utility to the engine core; the server calls it by name.
    """

    def initialize(self: Any) -> None:
        upstream(self)
        self.prefill_progress = partial(prefill_progress, self.scheduler)

    return initialize
