"""Checks, from the config, whether a ladder can rotate a model with multi-head latent attention."""

from collections.abc import Mapping
from typing import Any

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.ladders.softmax import softmax_slope
from ropeswitch.model_patches.switch.config.settings import UnsupportedError


def check_latent_attention(hf_config: Mapping[str, Any]) -> None:
    """Refuse a text config with multi-head latent attention that a ladder cannot rotate; pass every other config.

    Raises:
        UnsupportedError: with the config field, its value and the reason.
        FactorError: for ambiguous YaRN parameters.
    """
    if not hf_config.get("kv_lora_rank"):
        return
    rope = rope_parameters(hf_config)
    for key in ("llama_4_scaling", "llama_4_scaling_beta"):
        if rope.get(key) or hf_config.get(key):
            raise UnsupportedError(
                f"{key}: DeepSeek's layers scale attention by raw positions, which the model does not get"
            )
    # vLLM's layers rotate interleaved pairs regardless of this field.
    if hf_config.get("rope_interleave") is False:
        raise UnsupportedError("rope_interleave: false: vLLM's latent attention rotates interleaved pairs only")
    softmax_slope(hf_config)


def check_softmax_scales(hf_config: Mapping[str, Any], ladder: FactorLadder) -> None:
    """Refuse a ladder whose softmax scales do not fit the model; ``softmax_scales.py`` checks its layers.

    Raises:
        UnsupportedError: naming the set and the ``softmax_scale`` that it needs.
    """
    slope = softmax_slope(hf_config)
    for index, each in enumerate(ladder.sets):
        if each.softmax_scale is None and slope is not None:
            raise UnsupportedError(
                f"sets[{index}].softmax_scale: missing; the model's config scales the softmax (mscale_all_dim {slope:g}), "
                "so each set must state its own: (0.1 * mscale_all_dim * ln(factor) + 1) ** 2 for YaRN, 1 for none"
            )
        if each.softmax_scale not in (None, 1.0) and not hf_config.get("kv_lora_rank"):
            raise UnsupportedError(
                f"sets[{index}].softmax_scale: {each.softmax_scale}: allowed only for multi-head latent attention "
                "(kv_lora_rank); leave it out"
            )
