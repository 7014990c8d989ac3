"""The factor ladder that a Hugging Face ``config.json`` describes by itself.

Follows ``transformers.modeling_rope_utils._compute_longrope_parameters`` (5.19) for the factors and the attention factor,
and Phi-3.5-MoE's own modeling code for ``short_mscale`` and ``long_mscale``.
"""

import math
from collections.abc import Mapping
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.family_config import with_family_fields
from ropeswitch.factors.numbers import is_number, whole_value
from ropeswitch.factors.rope_layers import FULL, by_layer_type

LONGROPE_TYPES = ("longrope", "su")


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary parameters of a text config, old (``rope_scaling``) or new (``rope_parameters``) style, in one dict.

    As in transformers' ``standardize_rope_params``, ``rope_theta`` and ``partial_rotary_factor`` count inside first, then at
    the top level of the config, and ``original_max_position_embeddings`` the other way round.

    Where each type of layer has parameters of its own, those of full attention are returned.

    Raises:
        FactorError: when the config has parameters for each type of layer, but none for full attention, or when a field that
            the model's family has instead is wrong.
    """
    config = with_family_fields(config)
    layers = by_layer_type(config)
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {}) if layers is None else layers[FULL]
    if "rope_type" not in rope:
        rope["rope_type"] = rope.get("type", "default")
    for key in ("rope_theta", "partial_rotary_factor"):
        if rope.get(key) is None and config.get(key) is not None:
            rope[key] = config[key]
    if config.get("original_max_position_embeddings") is not None:
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return rope


def ladder_from_config(config: Mapping[str, Any]) -> FactorLadder | None:
    """The two-set ladder of a LongRoPE model, or None where the config has no LongRoPE factors.

    The short set serves sequences up to the original window, the long set those up to ``max_position_embeddings``; a model
    whose maximum does not exceed its window has the short set alone.

    Raises:
        FactorError: naming the config field that is missing or wrong.
    """
    rope = rope_parameters(config)
    if rope["rope_type"] not in LONGROPE_TYPES:
        return None
    for key in ("short_factor", "long_factor"):
        if not isinstance(rope.get(key), list | tuple):
            raise FactorError(f"rope_scaling.{key}: must be a list of numbers, found {rope.get(key)!r}")
    maximum = config.get("max_position_embeddings")
    maximum = whole_value("max_position_embeddings", maximum, most=math.inf)
    original = rope.get("original_max_position_embeddings")
    if original is None:
        original = maximum
    original = whole_value("original_max_position_embeddings", original, 2, math.inf)
    scale = attention_factor(rope, original, maximum)
    short = {
        "name": "short",
        "max_length": min(original, maximum),
        "factors": list(rope["short_factor"]),
        "scale": scale if rope.get("short_mscale") is None else rope["short_mscale"],
    }
    long = {
        "name": "long",
        "max_length": maximum,
        "factors": list(rope["long_factor"]),
        "scale": scale if rope.get("long_mscale") is None else rope["long_mscale"],
    }
    try:
        return FactorLadder.checked([short, long] if maximum > original else [short])
    except FactorError as error:
        raise FactorError(f"config.json: {error} (short_factor is sets[0], long_factor sets[1])") from error


def attention_factor(rope: Mapping[str, Any], original: int, maximum: int) -> float:
    """What cos and sin are multiplied by: the config's ``attention_factor``, else ``sqrt(1 + ln s / ln L)``.

    s is the config's ``factor``, or ``maximum / original``; where s does not exceed 1 the factor is 1.

    Raises:
        FactorError: when ``attention_factor`` or ``factor`` is not a positive number.
    """
    for key in ("attention_factor", "factor"):
        value = rope.get(key)
        if value is not None and not (is_number(value) and value > 0):
            raise FactorError(f"rope_scaling.{key}: {value!r} must be a number greater than 0")
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    factor = rope["factor"] if rope.get("factor") is not None else maximum / original
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
