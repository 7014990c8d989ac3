"""The part ``serving``: the engine core utility ``prefill_progress``, which reports how much of a prompt is computed."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ropeswitch.model_patches.switch.engine.patching import replace


def prepare(vllm_config: Any) -> None:
    """Patch an engine or worker process."""
    replace("vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size", reporting_progress)


def reporting_progress(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap a method that runs once the engine core's scheduler exists: adds the utility, which the server calls by name."""

    def initialize(self: Any) -> None:
        upstream(self)
        self.prefill_progress = partial(prefill_progress, self.scheduler)

    return initialize


def prefill_progress(
    scheduler: Any, request_ids: Sequence[str], predicts: bool = False
) -> dict[str, tuple[int, int, float | None]]:
    """Return for each known request its prompt tokens computed or scheduled, those cached, and the others' seconds.

    The seconds are None unless ``predicts``, which takes a multiple of the time.
    """
    found = {}
    for request_id in request_ids:
        if (request := scheduler.requests.get(request_id)) is not None:
            # Upstream drops these statistics at the first token.
            cached = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
            processed = min(request.num_computed_tokens, request.num_prompt_tokens)
            found[request_id] = processed, cached, scheduler.prefill_seconds(request) if predicts else None
    return found
