"""Rope parameters of a text config's layers: one set for all layers, or one per layer type.

Gemma 3 and later models have one base for full-attention layers and another for local ones. The ladder rotates the
former; the latter stay as trained, since they attend only within a window.
"""

from collections.abc import Mapping
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.numbers import is_whole

# Layer type that attends to the whole sequence.
FULL = "full_attention"
# Key in a layer's rope parameters that marks whether the ladder rotates it, and its two values.
MARK, LADDER, TRAINED = "ropeswitch", "ladder", "trained"
# Rotary embedding types with their own definition of axes.
AXIS_TYPES = ("bailing_mrope", "openpangu", "xdrope", "dynamic_xdrope")
# Field in older configs with the parameters of local layers.
LOCAL_PARAMETERS = "swa_rope_parameters"


def by_layer_type(config: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the rope parameters by layer type, or None if all layers share one set; FactorError without full attention."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    shared = not isinstance(rope.get(FULL), Mapping)
    if not rope or (shared and not all(isinstance(value, Mapping) or value is None for value in rope.values())):
        return None
    # Beside parameters of layer types, upstream ignores shared ones.
    found = {name: dict(value) for name, value in rope.items() if isinstance(value, Mapping) and value}
    if FULL not in found:
        raise FactorError(
            f"rope_parameters: has entries for {', '.join(found)}; the ladder needs one for {FULL!r}, which is missing"
        )
    return found


def marked(config: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return config overrides that give the ladder's layers ``plain`` rope parameters and keep the others as trained.

    ``config`` is the model's text config. The rope parameters of the overrides each carry :data:`MARK`.
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
    """Return the M-RoPE axis of each of ``pairs`` pairs; FactorError when the sections do not add up to ``pairs``.

    Source: ``MRotaryEmbedding.forward_native`` and ``apply_interleaved_rope`` of vLLM.
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
