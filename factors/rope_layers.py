"""The rope parameters of a text config's layers: one for all, or one for each type of layer.

Gemma 3 and later models have a base for layers of full attention and another for local ones. The ladder is put on the
former; the latter stay as they were trained, since their attention does not reach beyond a window.
"""

from collections.abc import Mapping
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.numbers import is_whole

# The layers whose attention reaches the whole sequence.
FULL = "full_attention"
# The key in a layer's rope parameters that says whether the ladder rotates it, and its two values.
MARK, LADDER, TRAINED = "ropeswitch", "ladder", "trained"
# Kinds of rotary embedding with axes of their own making.
AXIS_TYPES = ("bailing_mrope", "openpangu", "xdrope", "dynamic_xdrope")
# Where older configs have a second set of parameters, of local layers.
LOCAL_PARAMETERS = "swa_rope_parameters"


def by_layer_type(config: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """The rope parameters of each type of layer, or None where all layers share one set.

    Raises:
        FactorError: when none of several is that of full attention.
    """
    rope = config.get("rope_parameters") or {}
    if not rope or not all(isinstance(value, Mapping) or value is None for value in rope.values()):
        return None
    found = {name: dict(value) for name, value in rope.items() if value}
    if FULL not in found:
        raise FactorError(
            f"rope_parameters: has entries for {', '.join(found)}; a ladder goes on that of {FULL!r}, which is missing"
        )
    return found


def marked(config: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The config fields that put the ladder's layers on ``plain`` rope parameters and keep the others as trained.

    Args:
        config: The model's text config as a dict.
        plain: Rope parameters without scaling.

    Returns:
        Overrides of the config, each with its :data:`MARK`.
    """
    layers = by_layer_type(config)
    if layers is not None:
        rope = {name: value | {MARK: TRAINED} for name, value in layers.items()} | {FULL: dict(plain) | {MARK: LADDER}}
        return {"rope_parameters": rope}
    fields: dict[str, Any] = {"rope_parameters": dict(plain) | {MARK: LADDER}}
    if isinstance(local := config.get(LOCAL_PARAMETERS), Mapping):
        fields[LOCAL_PARAMETERS] = dict(local) | {MARK: TRAINED}
    return fields


def axes_of(rope: Mapping[str, Any], pairs: int) -> tuple[int, ...]:
    """The axis of each of ``pairs`` pairs of M-RoPE.

    Source: ``MRotaryEmbedding.forward_native`` and ``apply_interleaved_rope`` of vLLM.

    Raises:
        FactorError: when the sections do not have as many pairs.
    """
    sections = rope["mrope_section"]
    whole = isinstance(sections, list | tuple) and all(is_whole(size, 0) for size in sections)
    if not whole or len(sections) != 3 or sum(sections) != pairs:
        shown = list(sections) if whole else sections
        raise FactorError(
            f"rope_parameters.mrope_section: {shown!r} must be three sizes that add up to {pairs} rotated pairs"
        )
    if rope.get("mrope_interleaved"):
        return tuple(pair % 3 if pair < 3 * sections[pair % 3] else 0 for pair in range(pairs))
    return tuple(axis for axis, size in enumerate(sections) for _ in range(size))
