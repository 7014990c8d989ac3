"""The rotary embedding that a rule rescales: its size, base and original window."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.family_config import with_family_fields
from ropeswitch.factors.files import object_from_json, read_text
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.numbers import number_value, whole_value
from ropeswitch.factors.places import check_places
from ropeswitch.factors.rope_layers import FULL

# Rope type of models whose last pairs do not rotate.
PROPORTIONAL = "proportional"


@dataclass(frozen=True)
class Rope:
    """A rotary embedding before any extension: rotated values per head, base, and trained window in tokens.

    Raises FactorError for a size, base or window that no rule is defined for.
    """

    rotary_dim: int
    theta: float
    original_length: int

    def __post_init__(self) -> None:
        if self.rotary_dim < 4 or self.rotary_dim % 2:
            raise FactorError(f"rotary dimension: {self.rotary_dim} must be an even number of at least 4")
        if not 1 < self.theta < math.inf:
            raise FactorError(f"rope_theta: {self.theta!r} must be a finite number above 1")
        if self.original_length < 7:
            raise FactorError(
                f"original length: {self.original_length} must be at least 7 tokens, one rotation of the fastest pair"
            )

    @property
    def pairs(self) -> int:
        return self.rotary_dim // 2

    def wavelength(self, pair: float) -> float:
        """Return the tokens per rotation of ``pair`` (0 is the fastest), ``2 pi theta ** (2 pair / rotary_dim)``."""
        return 2 * math.pi * self.theta ** (2 * pair / self.rotary_dim)

    def turns(self, pair: int) -> float:
        """Return the rotations of a pair within the window: the r of YaRN (arXiv:2309.00071, definition 2)."""
        return self.original_length / self.wavelength(pair)

    def pair_with_turns(self, turns: float) -> float:
        """Return the real-valued pair index with ``turns`` rotations in the window; the inverse of :meth:`turns`."""
        ratio = self.original_length / (2 * math.pi * turns)
        return self.rotary_dim * math.log(ratio) / (2 * math.log(self.theta))

    @property
    def critical_pair(self) -> float:
        """The real-valued pair index that rotates exactly once within the window; see :meth:`critical_dimension`."""
        return self.pair_with_turns(1)

    @property
    def critical_note(self) -> str:
        """Explanation of the critical dimension."""
        return (
            f"critical dimension {self.critical_dimension} of {self.rotary_dim}: 2 ceil({self.pairs} "
            f"log_{self.theta:g}({self.original_length}/2pi)) = 2 ceil({self.critical_pair:.3f})"
        )

    @property
    def critical_dimension(self) -> int:
        """``2 ceil(d/2 log_theta(L / 2 pi))``: the number of rotated values that saw a full rotation in training.

        Source: Scaling Laws of RoPE-based Extrapolation (arXiv:2310.05209), LongRoPE2 (arXiv:2502.20082) equation 7.
        """
        return min(2 * math.ceil(self.critical_pair), self.rotary_dim)


def rope_from_model(path: str | Path, **known: Any) -> Rope:
    """Read the rotary embedding from a Hugging Face ``config.json``, or from the one in the folder ``path``.

    Any scaling in the config is ignored: the base and the window before scaling are used. ``known`` are fields of
    :class:`Rope` that override the config, which then need not contain them. A FactorError names the file and the field.
    """
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        config = object_from_json(read_text(file))
        check_places(config)
        return rope_from_config(config, **known)
    except FactorError as error:
        raise FactorError(f"{str(file)!r}: {error}") from error


def rope_from_config(config: Mapping[str, Any], **known: Any) -> Rope:
    """Read the rotary embedding from the values of a ``config.json``, as :func:`rope_from_model` does."""
    text_config = config.get("text_config")
    if isinstance(text_config, Mapping):
        config = text_config
    config = with_family_fields(config)
    rope = rope_parameters(config)
    if "rotary_dim" not in known:
        part = number_value("partial_rotary_factor", rope.get("partial_rotary_factor") or 1.0)
        # Bailing's factor is for the heads of linear attention; heads of latent attention rotate all of qk_rope_head_dim.
        known["rotary_dim"] = int(head_dim(config) * (1.0 if config.get("model_type") == "bailing_hybrid" else part))
    if "theta" not in known:
        if rope.get("rope_theta") is None:
            raise FactorError("rope_theta: missing; give it with --rope-theta")
        known["theta"] = base_of(rope)
    if "original_length" not in known:
        window = rope.get("original_max_position_embeddings") or config.get("max_position_embeddings")
        known["original_length"] = whole_value("max_position_embeddings", window, most=math.inf)
    return Rope(**known)


def base_of(rope: Mapping[str, Any]) -> float:
    """Return the base for which a model's frequencies are ``base ** (-2 i / rotated values)``.

    Gemma 4's ``proportional`` rope parameters divide ``i`` by all of a head's values, not by the rotated ones
    (``transformers.modeling_rope_utils._compute_proportional_rope_parameters``).
    """
    theta = number_value("rope_theta", rope.get("rope_theta"))
    if rope.get("rope_type") != PROPORTIONAL:
        return theta
    return theta ** number_value("partial_rotary_factor", rope.get("partial_rotary_factor") or 1.0)


def head_dim(config: Mapping[str, Any]) -> int:
    """Return the values per head to which a text config's ``partial_rotary_factor`` applies.

    Models with multi-head latent attention name the rotated part of the head. Gemma 4's full-attention layers have larger
    heads. DeepSeek-OCR, which lacks latent attention, sets the latent field to 0.
    """
    for key in ("qk_rope_head_dim", "global_head_dim", "head_dim"):
        if (found := _of_full_attention(config, key)) not in (None, 0):
            return whole_value(key, found, most=math.inf)
    hidden = whole_value("hidden_size", config.get("hidden_size"), most=math.inf)
    return hidden // whole_value("num_attention_heads", config.get("num_attention_heads"), most=math.inf)


def _of_full_attention(config: Mapping[str, Any], key: str) -> Any:
    """Return a field of the config, or of its full-attention layers if they have their own value."""
    types, layers = config.get("layer_types") or (), config.get("per_layer_config") or {}
    number = list(types).index(FULL) if FULL in types else None
    layer = layers.get(str(number), layers.get(number)) or {}
    return layer.get(key, config.get(key))
