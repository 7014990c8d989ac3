"""Attention scales of the rules: multipliers of cos and sin, which scale attention logits by their square."""

import math
from collections.abc import Callable

from ropeswitch.factors.hf_config import attention_factor

# Returns the attention scale for the extension ratio s and the original length L.
Attention = Callable[[float, int], float]


def none(scale: float, original_length: int) -> float:
    """Return 1: no scale, as in the LongRoPE paper (arXiv:2402.13753)."""
    return 1.0


def yarn(scale: float, original_length: int, slope: float = 0.1) -> float:
    """Return ``0.1 ln s + 1`` (arXiv:2309.00071, definition 3; ``get_mscale`` in transformers)."""
    return slope * math.log(scale) + 1 if scale > 1 else 1.0


def deepseek_v2(scale: float, original_length: int) -> float:
    """Return ``0.0707 ln s + 1`` (arXiv:2405.04434, section 3.1.4; ``yarn_get_mscale`` with ``mscale`` 0.707)."""
    return yarn(scale, original_length, 0.0707)


def longrope(scale: float, original_length: int) -> float:
    """Return ``sqrt(1 + ln s / ln L)``, as in published LongRoPE models (``_compute_longrope_parameters``)."""
    return attention_factor({"factor": scale}, original_length, original_length)


ATTENTION: dict[str, Attention] = {"none": none, "yarn": yarn, "deepseek-v2": deepseek_v2, "longrope": longrope}
