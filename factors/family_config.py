"""Adds rotary fields that a model family keeps in code, or stores in its config under other names."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.numbers import positive_value, whole_value


def with_family_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a text config with the standard rotary fields added; fields that the family's code reads are unchanged.

    Raises:
        FactorError: naming the family's field that is missing or wrong.
    """
    family = _FAMILIES.get(config.get("model_type", ""))
    return config if family is None else family(config)


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


_FAMILIES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "gptj": _gptj,
    "chatglm": _chatglm,
    "dbrx": _dbrx,
    "zamba2": _zamba2,
}
