"""The scheduling benchmark's model, and the settings of stock vLLM and of ours to compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Two layers: with stock's defaults on two cores, 24k tokens prefill in 10 to 25 s. With many small query heads and one key
# head, nearly all of that is attention's arithmetic, as in a 7B model at a few hundred thousand tokens.
LAYERS, HEADS, INTERMEDIATE, WINDOW, MAXIMUM, VOCABULARY = 2, (16, 1), 512, 2048, 40960, 8192
HEAD, BFLOAT16_BYTES = 32, 2
# Room for a 32k prompt and the short requests that arrive in the meantime.
KV_TOKENS = 49152
# Minimum and maximum tokens of the long prompt; short ones are for trial runs.
PROMPTS = (1024, 32768)
KV_BYTES = KV_TOKENS * LAYERS * 2 * HEADS[1] * HEAD * BFLOAT16_BYTES

# Stock's defaults, and its ways to limit a long prompt.
STOCK_SETTINGS: Mapping[str, dict[str, Any]] = {
    "stock default": {},
    "batched tokens 256": {"max_num_batched_tokens": 256},
    "threshold 64": {"long_prefill_token_threshold": 64},
    "threshold 128": {"long_prefill_token_threshold": 128},
    "threshold 256, adaptive": {"long_prefill_token_threshold": 256, "long_prefill_token_threshold_adaptive": True},
    "threshold 256, priority": {"long_prefill_token_threshold": 256, "scheduling_policy": "priority"},
}
TARGETS = (0.03, 0.06)


@dataclass(frozen=True)
class Setting:
    """One engine of the comparison.

    Attributes:
        name: Its name in tables and measurements.
        arguments: vLLM's engine arguments that differ from its defaults.
        ours: Whether the engine has our patches.
        target: Our step latency target in seconds; None is our default.
        length_aware: Whether an engine with our patches schedules by length; otherwise it keeps vLLM's order.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    ours: bool = False
    target: float | None = None
    length_aware: bool = True


STOCK = Setting("stock default")
OURS = Setting("ours default", ours=True)
OURS_IN_ORDER = Setting("ours, vLLM's order", ours=True, length_aware=False)


def stock() -> list[Setting]:
    """Return stock vLLM's defaults, then its ways to limit a long prompt's share of a step."""
    return [Setting(name, arguments) for name, arguments in STOCK_SETTINGS.items()]


def ours(targets: Sequence[float] = TARGETS) -> list[Setting]:
    """Return our scheduling at its default target and at the given ones, in seconds."""
    return [OURS, *(Setting(f"ours {1000 * target:g} ms", ours=True, target=target) for target in targets)]
