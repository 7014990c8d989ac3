"""Reads the softmax scale of multi-head latent attention, which DeepSeek's YaRN raises with the extension ratio.

transformers multiplies ``qk_head_dim ** -0.5`` by ``yarn_get_mscale(factor, mscale_all_dim) ** 2`` (``yarn_apply_mscale`` of
``modeling_deepseek_v3.py``, 5.19), and vLLM 0.32 does the same in ``DeepseekV2MLAAttention``.
"""

from collections.abc import Mapping
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.numbers import positive_value


def softmax_slope(config: Mapping[str, Any]) -> float | None:
    """Return the ``mscale_all_dim`` by which a text config's model scales its softmax, or None if it does not.

    Raises FactorError when transformers and vLLM interpret the config differently.
    """
    rope = rope_parameters(config)
    if not config.get("kv_lora_rank") or rope["rope_type"] == "default":
        return None
    if rope["rope_type"] == "deepseek_yarn":
        return None  # refused by name, with the reason
    given = [key for key in ("mscale", "mscale_all_dim") if rope.get(key)]
    if not given:
        return None
    if rope.get("attention_factor") is not None:
        raise FactorError(
            f"rope_scaling.attention_factor: {rope['attention_factor']!r} together with {given[0]} means different things "
            "to transformers and vLLM; remove one of them"
        )
    if len(given) == 1:
        raise FactorError(
            f"rope_scaling.{given[0]}: {rope[given[0]]!r} alone means different things to transformers and vLLM; set both "
            "mscale and mscale_all_dim, or neither"
        )
    if rope["rope_type"] != "yarn":
        raise FactorError(
            f"rope_scaling.mscale_all_dim: {rope['mscale_all_dim']!r} with rope_type {rope['rope_type']!r}; it is "
            "defined only for yarn. Remove it, or use yarn"
        )
    return positive_value("rope_scaling.mscale_all_dim", rope["mscale_all_dim"])
