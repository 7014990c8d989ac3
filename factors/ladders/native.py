"""Reads the rotation that a config describes: the model's native window, and its scaling for longer texts.

Follows ``transformers.modeling_rope_utils`` (5.19), and vLLM 0.32's ``rotary_embedding`` for ``ntk`` and ``dynamic`` with
``alpha``, which transformers lacks.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import FactorError, FieldError
from ropeswitch.factors.hf_config import COEFFICIENT, rope_parameters
from ropeswitch.factors.ladders.softmax import softmax_slope
from ropeswitch.factors.numbers import number_value, positive_value, whole_value
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.rules.formulas import (
    Factors,
    Options,
    Target,
    dynamic_ntk,
    llama3,
    position_interpolation,
    yarn_attention,
)
from ropeswitch.factors.rules.formulas import yarn_by_index as yarn
from ropeswitch.factors.rules.rope import PROPORTIONAL, Rope, rope_from_config

PLAIN = "default"
FAMILIES = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
# Fields that vLLM reads a model's maximum length from: the minimum counts, but `model_max_length` (Command R) always wins.
LENGTH_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Supported scalings, besides LongRoPE's lists.
SCALINGS = ("yarn", "llama3", "linear", "dynamic", "ntk")


@dataclass(frozen=True)
class Scaling:
    """The scaling of a config: its ``rope_type`` (one of :data:`SCALINGS`) and rotary parameters.

    ``factor`` is the extension ratio s at the config's longest sequence, ``softmax_slope`` the config's ``mscale_all_dim``,
    or None if the model does not scale its softmax by it.
    """

    kind: str
    values: Mapping[str, Any]
    factor: float
    softmax_slope: float | None = None

    def factors(self, rope: Rope, scale: float) -> Factors:
        """Return one divisor per rotary frequency at the extension ratio ``scale``."""
        try:
            return self._factors(rope, scale)
        except (ArithmeticError, ValueError) as error:
            if isinstance(error, FactorError):
                raise
            raise FactorError(f"rope_scaling: {self.kind} exceeds the range of float64 ({error})") from error

    def _factors(self, rope: Rope, scale: float) -> Factors:
        target = Target(max(round(scale * rope.original_length), 1), scale)
        if self.kind == "yarn":
            options = Options(
                alpha=self._number("beta_slow", 1), beta=self._number("beta_fast", 32), truncate=self._truncates()
            )
            return yarn(rope, target, options)
        if self.kind == "llama3":
            low, high = self._number("low_freq_factor", 1), self._number("high_freq_factor", 4)
            if low > high:
                raise FactorError(f"rope_scaling.low_freq_factor: {low:g} exceeds high_freq_factor, {high:g}")
            return llama3(rope, target, Options(low_freq_factor=low, high_freq_factor=high))
        if self.kind == "linear":
            return position_interpolation(rope, target, Options())
        if self.kind == "dynamic":
            if (alpha := self.values.get("alpha")) is not None:
                ratio = positive_value("rope_scaling.alpha", alpha)
                return dynamic_ntk(rope, replace(target, scale=ratio), Options())
            return dynamic_ntk(rope, target, Options(dynamic_factor=self._number("factor", 1)))
        return self._fixed_ntk(rope, scale)

    def attention(self, scale: float) -> float:
        """Return the multiplier of cos and sin at the extension ratio ``scale`` (``_compute_yarn_parameters``)."""
        if self.kind != "yarn":
            return 1.0
        if self.values.get("attention_factor") is not None:
            return positive_value("rope_scaling.attention_factor", self.values["attention_factor"])
        slope, all_dim = self.values.get("mscale"), self.values.get("mscale_all_dim")
        if slope and all_dim:
            each = (0.1 * number_value("rope_scaling.mscale", value) for value in (slope, all_dim))
            over, under = (yarn_attention(scale, 0, value) for value in each)
            return over / under
        return yarn_attention(scale, 0, self.values.get(COEFFICIENT, 0.1))

    def softmax(self, scale: float) -> float | None:
        """Return the multiplier of attention logits at the extension ratio ``scale`` (``yarn_apply_mscale``), or None."""
        return None if self.softmax_slope is None else yarn_attention(scale, 0, 0.1 * self.softmax_slope) ** 2

    def describe_attention(self) -> str:
        """Describe where the attention scale comes from, if the config sets it."""
        if self.kind == "yarn" and self.values.get("attention_factor") is not None:
            return "attention_factor of the config"
        if COEFFICIENT in self.values:
            return f"attention {self.values[COEFFICIENT]:g} ln(factor) + 1 of the config's rope_type"
        return "mscale of the config" if self.values.get("mscale") and self.values.get("mscale_all_dim") else ""

    def _fixed_ntk(self, rope: Rope, scale: float) -> Factors:
        pairs = range(1, rope.pairs + 1)
        if self.values.get("mixed_b") is None:
            return tuple(scale ** (2 * pair / rope.rotary_dim) for pair in pairs)
        power = number_value("rope_scaling.mixed_b", self.values["mixed_b"])
        slope = math.log(scale) / rope.pairs**power
        return tuple(math.exp(slope * pair**power) for pair in pairs)

    def _number(self, key: str, default: float) -> float:
        # Upstream treats 0 and null as the default, too.
        return positive_value(f"rope_scaling.{key}", self.values.get(key) or default)

    def _truncates(self) -> bool:
        return bool(self.values.get("truncate", True))


@dataclass(frozen=True)
class Native:
    """The rotation that a config describes.

    Attributes:
        rope: Base and size; ``original_length`` is the window before the config's scaling.
        window_source: Where that window comes from.
        end: Longest sequence that the config allows with its scaling, in tokens.
        scaling: The config's scaling, or None for plain RoPE.
        trained: Whether the model was trained with that scaling; None if unknown.
        trained_source: Source of that fact.
    """

    rope: Rope
    window_source: str
    end: int
    scaling: Scaling | None = None
    trained: bool | None = None
    trained_source: str = ""


def native_of(config: Mapping[str, Any], window: int | None = None) -> Native:
    """Read a text config's rotation; ``window`` is the native window that the user states, in tokens.

    Raises FactorError, naming the field of the config that is missing, wrong or unsupported, or ``--native-window``.
    """
    values = rope_parameters(config)
    kind = values["rope_type"]
    if values.get("rope_theta") is None:
        raise FactorError("rope_theta: missing; the config states no rotary base that a ladder could scale")
    field, longest = longest_of(config)
    stated = values.get("original_max_position_embeddings")
    if kind in (PLAIN, PROPORTIONAL):
        found, source = _window(config, stated, field, longest)
        rope = _rope(config, found, window, longest if stated is None else found)
        return Native(rope, source if window is None else "--native-window", longest)
    if kind == "deepseek_yarn":
        raise FactorError(
            "rope_scaling.rope_type: 'deepseek_yarn': vLLM scales the softmax of this model's layers for that name alone, "
            "once for all lengths, so no ladder is exact. Serve it with vllm serve without a ladder"
        )
    if kind not in SCALINGS:
        raise FieldError(
            "rope_scaling.rope_type",
            "{kind} is unsupported; allowed: {allowed} and longrope. Serve other models with a factor file: {ladder} "
            "file:PATH",
            kind=quoted(kind),
            allowed=", ".join((PLAIN, *SCALINGS)),
        )
    original = longest if stated is None or kind in ("linear", "dynamic", "ntk") else stated
    # NomicBert's dynamic NTK scales from here, and its maximum length includes the scaling.
    if kind == "dynamic" and (trained_on := config.get("max_trained_positions")) is not None:
        original = whole_value("max_trained_positions", trained_on, most=longest)
    original = whole_value("rope_scaling.original_max_position_embeddings", original, most=math.inf)
    if kind == "dynamic" and values.get("alpha") is not None:
        factor = 1.0
    elif kind == "yarn" and values.get("factor") is None:
        factor = longest / original
    else:
        factor = positive_value("rope_scaling.factor", values.get("factor"))
    if factor < 1:
        raise FactorError(f"rope_scaling.factor: {factor:g} must be at least 1")
    trained, why = _training(config, kind, values)
    # Only these include the scaling in their maximum length, and users often leave yarn's unchanged.
    end = max(longest, round(original * factor)) if kind == "yarn" else longest
    whole = (
        kind in ("yarn", "llama3") or original < longest or bool(_family("scaling", config, kind).get("scaled_length"))
    )
    end = end if whole else round(longest * factor)
    name = field if original == longest else "original_max_position_embeddings"
    name = "max_trained_positions" if kind == "dynamic" and original < longest else name
    source = f"{name} of the config" if window is None else "--native-window"
    scaling = Scaling(kind, values, factor, softmax_slope(config))
    return Native(_rope(config, original, window, original), source, end, scaling, trained, why)


def longest_of(config: Mapping[str, Any]) -> tuple[str, int]:
    """Return the field of a text config that states the maximum length without scaling, and its value in tokens.

    Source: ``ModelArchConfigConvertorBase.derive_max_model_len_and_key`` of vLLM 0.32.
    """
    lengths = {
        field: whole_value(field, config[field], most=math.inf)
        for field in LENGTH_FIELDS
        if config.get(field) is not None
    }
    if not lengths:
        raise FactorError("max_position_embeddings: missing in the model's config")
    field = "model_max_length" if "model_max_length" in lengths else min(lengths, key=lambda each: lengths[each])
    return field, lengths[field]


def _window(config: Mapping[str, Any], stated: Any, field: str, longest: int) -> tuple[int, str]:
    """Return the window of a model without scaling, and its source."""
    # Phi-3's config class defaults to 4,096 tokens, even for models with another window.
    if stated is not None and not (config.get("model_type") == "phi3" and stated == 4096):
        original = "original_max_position_embeddings"
        if (found := whole_value(original, stated, most=math.inf)) <= longest:
            return found, f"{original} of the config"
    if known := _family("window", config):
        return known["tokens"], f"{known['name']}, {known['source']}"
    return longest, f"{field} of the config"


def _training(config: Mapping[str, Any], kind: str, values: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Return whether a model was trained with its scaling, and the source of that fact."""
    if kind == "llama3":
        return True, "Llama 3.1 was trained with llama3"
    if kind == "dynamic" and values.get("alpha") is not None:
        return True, "alpha is a fixed change of the base"
    if kind == "dynamic":
        return False, "dynamic leaves sequences within the window unscaled"
    known = _family("scaling", config, kind)
    return (known["trained"], f"{known['name']}, {known['source']}") if known else (None, "")


def _family(table: str, config: Mapping[str, Any], kind: str = "") -> dict[str, Any]:
    """Return what ``families.toml`` states about a config's family, each fact with its source; empty if it is unknown."""
    for each in FAMILIES[table]:
        length = each.get("max_position_embeddings", config.get("max_position_embeddings"))
        alike = length == config.get("max_position_embeddings") and kind in each.get("rope_types", [""])
        if alike and config.get("model_type") in each["model_types"]:
            return each
    return {}


def _rope(config: Mapping[str, Any], found: int, window: int | None, most: int) -> Rope:
    """Return the rotary embedding with the native window ``window`` (at most ``most``), or ``found`` if it is None."""
    if window is not None and window > most:
        raise FieldError(
            "native_window",
            "{window} exceeds {most}, the window in the model's config. Use at most {most}",
            window=window,
            most=most,
        )
    return rope_from_config(config, original_length=found if window is None else window)
