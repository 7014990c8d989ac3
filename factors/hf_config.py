"""Reads rotary parameters and the LongRoPE ladder from a Hugging Face ``config.json``.

Follows ``transformers.modeling_rope_utils._compute_longrope_parameters`` (5.19) for the factors and the attention factor,
and Phi-3.5-MoE's own modeling code for ``short_mscale`` and ``long_mscale``.
"""

import math
from collections.abc import Mapping
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.family_config import with_family_fields
from ropeswitch.factors.numbers import is_number, whole_value
from ropeswitch.factors.places import WINDOW, WINDOWED
from ropeswitch.factors.rope_layers import FULL, by_layer_type

LONGROPE_TYPES = ("longrope", "su")
# Vendors' names for YaRN whose attention scale is ``COEFFICIENT ln s + 1`` instead of ``0.1 ln s + 1``
# (``vllm.transformers_utils.config.patch_legacy_rope_type``), and the key under which the number is read.
COEFFICIENT = "attention_coefficient"
YARN_COEFFICIENTS = {"telechat3-yarn": 0.07}


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a text config's rotary parameters as one dict, whether stored in ``rope_scaling`` or ``rope_parameters``.

    As in transformers' ``standardize_rope_params``, nested ``rope_theta`` and ``partial_rotary_factor`` take precedence over
    the config's top level; for ``original_max_position_embeddings`` the top level takes precedence. If each layer type has
    its own parameters, those of full attention are returned.
    """
    config = with_family_fields(config)
    layers = by_layer_type(config)
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {}) if layers is None else layers[FULL]
    if "rope_type" not in rope:
        rope["rope_type"] = rope.get("type", "default")
    for key in ("rope_theta", "partial_rotary_factor"):
        if rope.get(key) is None and config.get(key) is not None:
            rope[key] = config[key]
    kind = rope["rope_type"]
    if isinstance(kind, str) and kind in YARN_COEFFICIENTS:
        rope |= {"rope_type": "yarn", COEFFICIENT: YARN_COEFFICIENTS[kind]}
        rope.pop("type", None)
    if config.get(WINDOW) is not None:
        rope[WINDOW] = config[WINDOW]
    elif rope["rope_type"] in WINDOWED and config.get("max_position_embeddings") is not None:
        rope.setdefault(WINDOW, config["max_position_embeddings"])
    return rope


def ladder_from_config(config: Mapping[str, Any]) -> FactorLadder | None:
    """Return the ladder of a LongRoPE config, or None if it has no LongRoPE factors.

    The short set serves sequences up to the original window, the long set those up to ``max_position_embeddings``. If the
    maximum does not exceed the window, the ladder has only the short set. A FactorError names the wrong field.
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
    lengths = {"short": min(original, maximum), "long": maximum} if maximum > original else {"short": maximum}
    sets = []
    for name, length in lengths.items():
        own = rope.get(f"{name}_mscale")
        factors = list(rope[f"{name}_factor"])
        sets.append({"name": name, "max_length": length, "factors": factors, "scale": scale if own is None else own})
    try:
        return FactorLadder.checked(sets)
    except FactorError as error:
        raise FactorError(f"config.json: {error} (short_factor is sets[0], long_factor sets[1])") from error


def attention_factor(rope: Mapping[str, Any], original: int, maximum: int) -> float:
    """Return the multiplier of cos and sin: the config's ``attention_factor``, else ``sqrt(1 + ln s / ln L)``.

    s is the config's ``factor``, or ``maximum / original``; L is ``original``. If s does not exceed 1, the result is 1.
    """
    for key in ("attention_factor", "factor"):
        value = rope.get(key)
        if value is not None and not (is_number(value) and value > 0):
            raise FactorError(f"rope_scaling.{key}: {value!r} must be a number greater than 0")
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    factor = rope["factor"] if rope.get("factor") is not None else maximum / original
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
