"""Puts the parts of the front together in an API server process, when its engine is known."""

from collections.abc import Callable

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.front.admission import Admission
from ropeswitch.server.front.flags import (
    BODY_BYTES,
    BODY_BYTES_PER_TOKEN,
    HELD_BODIES,
    QUEUED_PROMPTS,
    QUEUED_REQUESTS,
    QUEUED_TOKENS,
    FrontConfig,
)
from ropeswitch.server.front.front import FrontState
from ropeswitch.server.front.held_bodies import HeldBodies
from ropeswitch.server.front.key_limits import KeyLimits
from ropeswitch.server.front.keys import KeyRing
from ropeswitch.server.front.queue_limits import LengthClass, QueueLimits, Waits
from ropeswitch.server.front.shared_counts import SharedCounts


def build(
    config: FrontConfig,
    ladder: FactorLadder,
    max_model_len: int,
    waits: Waits,
    make_error: Callable[[str, int], Exception],
) -> tuple[FrontState, Admission]:
    """What the middleware goes by, and what lets prompts into the engine.

    Args:
        config: What the flags say.
        ladder: The ladder in force.
        max_model_len: The longest sequence, in tokens.
        waits: See :data:`~ropeswitch.server.front.queue_limits.Waits`.
        make_error: See :class:`~ropeswitch.server.front.admission.Admission`.

    Raises:
        UsageError: when the file of keys has become unreadable since the command looked at it.
        IndexError: for a ladder of more sets than there may be length classes.
    """
    counts = SharedCounts(config.counts)
    queue = QueueLimits(length_classes(config, ladder, max_model_len), counts, waits)
    max_body_bytes = config.max_body_bytes or max(BODY_BYTES, BODY_BYTES_PER_TOKEN * max_model_len)
    state = FrontState(
        keys=KeyRing(config.key_digests, config.key_file),
        metrics_keys=KeyRing(config.metrics_digests, config.metrics_key_file, "--metrics-key-file"),
        key_limits=KeyLimits(counts, config.max_concurrent_per_key, config.requests_per_minute_per_key),
        queue=queue,
        max_body_bytes=max_body_bytes,
        held_bodies=HeldBodies(config.max_held_body_bytes or HELD_BODIES * max_body_bytes),
        body_timeout=config.body_timeout,
    )
    return state, Admission(queue, config.max_prompt_tokens, make_error)


def length_classes(config: FrontConfig, ladder: FactorLadder, max_model_len: int) -> list[LengthClass]:
    """One class for each factor set, with the limits that were given for it, or for all, or else suit its prompts."""
    requests, tokens = config.max_queued_requests, config.max_queued_tokens
    return [
        LengthClass(
            name=each.name,
            max_length=each.max_length,
            max_requests=requests.get(each.name) or requests.get(None) or QUEUED_REQUESTS,
            max_tokens=tokens.get(each.name)
            or tokens.get(None)
            or max(QUEUED_TOKENS, QUEUED_PROMPTS * min(each.max_length, max_model_len)),
        )
        for each in ladder.sets
    ]
