"""What the scheduling benchmark compares: its model, stock vLLM's settings and ours."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Two layers: on two cores and stock's defaults 24k tokens prefill in about 10 s. Many small query heads and one key head
# make nearly all of that attention's arithmetic, as it is in a model of 7B at some hundred thousand tokens.
LAYERS, HEADS, INTERMEDIATE, WINDOW, MAXIMUM, VOCABULARY = 2, (16, 1), 512, 8192, 40960, 8192
HEAD, BFLOAT16_BYTES = 32, 2
# A 32k prompt, the decoding request, and the short requests that wait meanwhile where they must.
KV_TOKENS = 49152
# The least and most tokens of a long prompt; the shorter ones are for trying things out.
PROMPTS = (1024, 32768)
KV_BYTES = KV_TOKENS * LAYERS * 2 * HEADS[1] * HEAD * BFLOAT16_BYTES

THRESHOLDS = (64, 128, 256, 512)
BATCHED_TOKENS = (128, 256, 512, 1024)
# The last one lets a chunk take most of stock's own budget, so that our curve reaches stock's shortest completion times.
TARGETS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.8)
# Short requests that arrive at once with a long prompt.
BURST = 64


@dataclass(frozen=True)
class Setting:
    """One engine of the comparison.

    Attributes:
        name: What tables and the measurements call it.
        arguments: vLLM's engine arguments that differ from its defaults.
        ours: Whether the engine has our patches and schedules by length.
        target: Our step latency target in seconds; None is our default.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    ours: bool = False
    target: float | None = None


STOCK = Setting("stock default")
OURS = Setting("ours default", ours=True)
CROSSING = Setting("ours", {"block_size": 32}, ours=True)
CROSSING_UNCACHED = Setting("ours, no prefix cache", {"block_size": 32, "enable_prefix_caching": False}, ours=True)


def tuned() -> list[Setting]:
    """Stock vLLM's ways to limit what a long prompt takes of a step, each at several values."""
    found = []
    for threshold in THRESHOLDS:
        limit = {"long_prefill_token_threshold": threshold}
        found.append(Setting(f"threshold {threshold}", limit))
        adaptive = limit | {"long_prefill_token_threshold_adaptive": True}
        found.append(Setting(f"threshold {threshold} adaptive", adaptive))
    found += [Setting(f"batched tokens {tokens}", {"max_num_batched_tokens": tokens}) for tokens in BATCHED_TOKENS]
    return found


def ours(targets: Sequence[float] = TARGETS) -> list[Setting]:
    """Our scheduling at its default target and at the given ones, in seconds."""
    return [OURS, *(Setting(f"ours {1000 * target:g} ms", ours=True, target=target) for target in targets)]
