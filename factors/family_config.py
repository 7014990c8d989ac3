"""Adds rotary fields that a model family keeps in code, or stores in its config under other names."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.numbers import positive_value, whole_value

# Rotated part of each head in transformers' config classes, where a config does not state it.
HALF = ("bamba", "glm", "glm4", "glm4_moe", "glm4v_moe_text", "nemotron", "persimmon", "phi", "recurrent_gemma")
QUARTER = ("neomme", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "stablelm")
PARTIAL = dict.fromkeys(HALF, 0.5) | dict.fromkeys(QUARTER, 0.25)
# Families whose class has a block of its own, which a config without a block gets whatever else it states: the fields of
# that block, or None if it has scaling or parameters by layer type.
CLASS_BLOCKS: dict[str, dict[str, float] | None] = {
    "apertus": None,
    "cosmos3_edge_text": {"rope_theta": 100000000.0},
    "cwm": None,
    "diffusion_gemma_text": None,
    "gemma4_text": None,
    "gemma4_unified_text": None,
    "gpt_oss": None,
    "higgs_audio_v2": None,
    "laguna": {"rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    "mellum": {"rope_theta": 500000.0},
    "mimo_v2_flash": {"rope_theta": 5000000.0, "partial_rotary_factor": 0.334},
    "ministral3": None,
    "mistral4": None,
    "openai_privacy_filter": None,
}
# Names that a family's class reads in place of the standard ones, which it ignores, and what it takes without them.
NAMES: dict[str, dict[str, tuple[str, float]]] = {
    "gpt_neox": {"rope_theta": ("rotary_emb_base", 10000), "partial_rotary_factor": ("rotary_pct", 0.25)},
    "gpt_neox_japanese": {"rope_theta": ("rotary_emb_base", 10000), "partial_rotary_factor": ("rotary_pct", 1.0)},
}
# Places that a family's class ignores. `flat` is a `rope_parameters` that is not by layer type, `layers` one that is, `type`
# the old name of `rope_type`, and `scaling` any rope type but the default.
_BY_LAYER = ("flat", "type", "partial_rotary_factor")
IGNORED = {
    "bamba": ("layers",),
    "cohere2_moe": ("scaling", "layers"),
    "embedding_gemma2_text": ("rope_theta",),
    "gemma3_text": _BY_LAYER,
    "gemma3n_text": _BY_LAYER,
    "glm": ("layers",),
    "glm4": ("layers",),
    "gpt_neox": ("layers",),
    "hunyuan_vl": ("partial_rotary_factor",),
    "modernbert": ("rope_theta", *_BY_LAYER),
    "modernbert-decoder": ("rope_theta", *_BY_LAYER),
    "olmo3": _BY_LAYER,
    "qwen2_5_vl": ("partial_rotary_factor",),
    "qwen2_5_vl_text": ("partial_rotary_factor",),
    "qwen2_vl": ("partial_rotary_factor",),
    "qwen2_vl_text": ("partial_rotary_factor",),
    "step3p5": _BY_LAYER,
    "zaya": ("scaling",),
}


def with_family_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a text config with the standard rotary fields added; fields that the family's code reads are unchanged."""
    kind = config.get("model_type", "")
    family = _FAMILIES.get(kind)
    config = config if family is None else family(config)
    return {"partial_rotary_factor": PARTIAL[kind]} | dict(config) if kind in PARTIAL else config


def _gptj(config: Mapping[str, Any]) -> dict[str, Any]:
    """GPT-J (``transformers.models.gptj``, ``vllm.model_executor.models.gpt_j``): base 10,000, partially rotated heads."""
    if config.get("rotary") is False:
        return dict(config)
    hidden = whole_value("n_embd", config.get("n_embd"), most=math.inf)
    heads = whole_value("n_head", config.get("n_head"), most=hidden)
    rotary = whole_value("rotary_dim", config.get("rotary_dim"), most=hidden // heads)
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "max_position_embeddings": config.get("n_positions"),
        "rope_theta": 10000.0,
        "partial_rotary_factor": rotary / (hidden // heads),
    } | dict(config)


def _chatglm(config: Mapping[str, Any]) -> dict[str, Any]:
    """ChatGLM 2 to 4 (``vllm.model_executor.models.chatglm``): base 10,000 times ``rope_ratio``, half-rotated heads."""
    return {
        "max_position_embeddings": config.get("seq_length"),
        "rope_theta": 10000.0 * positive_value("rope_ratio", config.get("rope_ratio", 1.0)),
        "partial_rotary_factor": 0.5,
    } | dict(config)


def _dbrx(config: Mapping[str, Any]) -> dict[str, Any]:
    """DBRX (``vllm.model_executor.models.dbrx``): its layers read the base only from ``attn_config``.

    ``rope_parameters`` is ignored, because transformers fills in a base of its own.
    """
    attention = config.get("attn_config")
    if not isinstance(attention, Mapping):
        raise FactorError(f"attn_config: {attention!r} must be an object")
    return dict(config) | {
        "hidden_size": config.get("d_model"),
        "num_attention_heads": config.get("n_heads"),
        "max_position_embeddings": config.get("max_seq_len"),
        "rope_parameters": {"rope_type": "default", "rope_theta": attention.get("rope_theta")},
    }


def _zamba2(config: Mapping[str, Any]) -> dict[str, Any]:
    """Zamba 2 (``vllm.model_executor.models.zamba2``): attends over hidden and input values, so heads are twice as wide."""
    return {"head_dim": config.get("attention_head_dim")} | dict(config)


def _gpt_neox(config: Mapping[str, Any]) -> dict[str, Any]:
    """GPT-NeoX (``transformers.models.gpt_neox``): its own names for the base and the rotated part of each head."""
    names = NAMES[config["model_type"]]
    return {field: config.get(name, default) for field, (name, default) in names.items()} | dict(config)


def _minimax_m2(config: Mapping[str, Any]) -> dict[str, Any]:
    """MiniMax M2 (``transformers.models.minimax_m2``): the number of rotated values of each head."""
    if config.get("rotary_dim") is None:
        return dict(config)
    head = whole_value("head_dim", config.get("head_dim", 128), most=math.inf)
    return {"partial_rotary_factor": whole_value("rotary_dim", config["rotary_dim"], most=head) / head} | dict(config)


_FAMILIES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "gpt_neox": _gpt_neox,
    "gpt_neox_japanese": _gpt_neox,
    "gptj": _gptj,
    "chatglm": _chatglm,
    "dbrx": _dbrx,
    "minimax_m2": _minimax_m2,
    "zamba2": _zamba2,
}
