"""Derives a rotary module's rotation from the rope parameters of a layer.

A model may have several rotary bases: full-attention layers follow the ladder, local layers rotate as trained. The engine's
config marks its rope parameters with :data:`MARK`, since two layer types may share a base.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.rope_layers import AXIS_TYPES, LADDER, MARK, axes_of
from ropeswitch.factors.rules.rope import PROPORTIONAL, base_of
from ropeswitch.kernels.angles import Frequencies
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError


@dataclass(frozen=True)
class Rotation:
    """The rows that one kind of rotary module reads."""

    theta: float  # The rotary base.
    rotary_dim: int  # Width of a row: two values per pair.
    idle: int = 0  # Pairs at a row's end that never rotate.
    laddered: bool = True  # Whether the ladder's factors apply, rather than plain frequencies.
    marked: bool = False  # Whether the config decides that, by its mark in the layer's rope parameters.
    scaled: bool = False  # Whether the layer requests its own scaling.
    axes: tuple[int, ...] | None = None  # For M-RoPE, the axis of each pair; None if a token has one position.
    behind: int = 0  # How many positions before its own a token's row is for.

    def sets(self, settings: RopeSettings, layer: int | None = None) -> tuple[Frequencies, ...]:
        """Return the frequencies of each set, in one layer, or of one plain set if the ladder does not apply."""
        never = (float("inf"),) * self.idle
        if not self.laddered:
            return (Frequencies((1.0,) * (self.rotary_dim // 2 - self.idle) + never),)
        sets = [each.of_layer(layer) for each in settings.ladder.sets]
        return tuple(Frequencies((*s.factors, *never), s.scale, s.start_tokens) for s in sets)


def rotation_of(
    head_size: int, rotary_dim: int, rope: Mapping[str, Any], settings: RopeSettings, *, multimodal: bool
) -> Rotation | None:
    """Return the rotation that a layer with these rope parameters asks for.

    In a multimodal model, None for an encoder's rotary module, which stays upstream's.

    Raises:
        UnsupportedError: for a rotation that the ladder does not support, or a number of factors that does not match.
    """
    theta, kind, mark = rope.get("rope_theta", 10000), rope.get("rope_type", "default"), rope.get(MARK)
    if mark is None and multimodal:
        return None
    if kind in AXIS_TYPES:
        # Some models derive this type from a config's default type and sections.
        raise UnsupportedError(
            f"rope_parameters: a layer asks for rope_type {kind!r}, whose axes are not those of mrope_section"
        )
    if mark == LADDER and base_of(rope) != settings.theta:
        raise UnsupportedError(
            f"rope_parameters: a layer asks for rope_theta {theta!r}, but the ladder is on a base of {settings.theta}; "
            "layers with bases of their own need rope_parameters for each type of layer"
        )
    # A model may set its layers' parameters itself; those with the ladder's base may be the ladder's.
    laddered = mark == LADDER or (mark is None and theta == settings.theta)
    if not laddered and kind != "default":
        raise UnsupportedError(
            f"rope_parameters: a layer asks for rope_type {kind!r} with rope_theta {theta!r}; the ladder is on rope_theta "
            f"{settings.theta}, and other layers must have plain rotary embeddings"
        )
    idle = head_size // 2 - rotary_dim // 2 if kind == PROPORTIONAL else 0
    pairs = settings.ladder.rotary_dim // 2
    if laddered and rotary_dim != 2 * pairs:
        raise UnsupportedError(
            f"factors: each set has {pairs} factors, but a layer rotates {rotary_dim} values per head and needs "
            f"{rotary_dim // 2}"
        )
    width = rotary_dim + 2 * idle
    axes = None if rope.get("mrope_section") is None else axes_of(rope, width // 2)
    scaled = mark is None and kind != "default"
    return Rotation(float(theta), width, idle, laddered, mark is not None, scaled, axes)
