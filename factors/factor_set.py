"""Factor sets, and the ladder that selects the set for a sequence by its length.

A LongRoPE model has one list of rescale factors per length (LongRoPE, arXiv:2402.13753, section 3.2). This module holds
the data and the selection rule; it reads no files and imports no engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ropeswitch.factors.errors import FactorError as FactorError
from ropeswitch.factors.errors import FieldError
from ropeswitch.factors.numbers import positive_value, whole_value
from ropeswitch.factors.quoted import quoted

SET_HEADER = "x-rope-factor-set"
"""Response header that lists the sets in which a request's prompts started."""


@dataclass(frozen=True)
class LayerFactors:
    """The factors and the scale of one layer, as those of :class:`FactorSet`."""

    factors: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class FactorSet:
    """The rotary factors for sequences of one range of lengths.

    Attributes:
        name: Name of the set in requests, headers and metrics.
        max_length: Longest sequence that this set rotates, in tokens.
        factors: One divisor per rotary frequency; frequency i is ``1 / (factors[i] * theta ** (2 * i / rotary_dim))``.
        scale: Multiplier of cos and sin (the attention factor).
        start_tokens: Positions below it keep the unscaled angles, i.e. factor 1 (the paper's n-hat).
        softmax_scale: Additional multiplier of attention logits, as with DeepSeek's ``mscale_all_dim``. None if the set
            does not specify one; a model whose config has ``mscale_all_dim`` rejects such a set.
        layers: For a set by layer, one entry for each decoder layer, which replaces ``factors`` and ``scale`` there; draft
            models use those. Empty for a set that is the same in all layers.
    """

    name: str
    max_length: int
    factors: tuple[float, ...]
    scale: float = 1.0
    start_tokens: int = 0
    softmax_scale: float | None = None
    layers: tuple[LayerFactors, ...] = ()

    @property
    def rotates(self) -> tuple[Any, ...]:
        """What it rotates with: sets that agree in it are the same."""
        return self.factors, self.scale, self.start_tokens, tuple((each.factors, each.scale) for each in self.layers)

    def of_layer(self, layer: int | None) -> "FactorSet":
        """Return the set as one layer rotates with it; None stands for what is not a layer."""
        if layer is None or not self.layers:
            return replace(self, layers=())
        return replace(self, layers=(), **vars(self.layers[layer]))


@dataclass(frozen=True)
class FactorLadder:
    """Factor sets in order of length; a sequence of n tokens uses the first with ``n <= max_length``."""

    sets: tuple[FactorSet, ...]

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens, that the ladder rotates."""
        return self.sets[-1].max_length

    @property
    def rotary_dim(self) -> int:
        """Rotated values per head: two per factor."""
        return 2 * len(self.sets[0].factors)

    @property
    def layers(self) -> int:
        """The number of layers with factors of their own; 0 if every set is the same in all layers."""
        return max(len(each.layers) for each in self.sets)

    @property
    def scales_softmax(self) -> bool:
        """Whether any set scales attention logits."""
        return any(each.softmax_scale not in (None, 1.0) for each in self.sets)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.sets)

    def index_for(self, num_tokens: int) -> int:
        """Return the index of the set that rotates ``num_tokens`` tokens; FieldError beyond the ladder's end."""
        for index, factor_set in enumerate(self.sets):
            if num_tokens <= factor_set.max_length:
                return index
        raise FieldError(
            "prompt",
            "a sequence of {tokens} tokens is longer than the factor ladder's end, {end} tokens",
            tokens=num_tokens,
            end=self.max_length,
        )

    def named(self, field: str, name: str) -> FactorSet:
        """Return the set named ``name``; a FactorError names ``field``."""
        if name not in self.names:
            raise FactorError(f"{field}: no set is named {name!r}; the sets are {', '.join(self.names)}")
        return self.sets[self.names.index(name)]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the ladder as plain JSON values, the inverse of :meth:`checked`."""
        return [
            {key: value for key, value in (asdict(s) | {"factors": list(s.factors)}).items() if value not in (None, ())}
            for s in self.sets
        ]

    @classmethod
    def checked(cls, sets: Sequence[Mapping[str, Any]]) -> "FactorLadder":
        """Build a ladder from mappings with the fields of :class:`FactorSet`; check everything a server relies on.

        Raises FactorError, naming the field, the value and what is allowed.
        """
        if not isinstance(sets, list | tuple) or not sets:
            raise FactorError("sets: must be a list of at least one factor set")
        ladder = cls(tuple(_checked_set(index, values) for index, values in enumerate(sets)))
        for index, (before, after) in enumerate(zip(ladder.sets, ladder.sets[1:], strict=False), start=1):
            if after.max_length <= before.max_length:
                raise FactorError(
                    f"sets[{index}].max_length: {after.max_length} must exceed {before.max_length}, the max_length of the "
                    "set before it; list sets by increasing length"
                )
            if len(after.factors) != len(before.factors):
                raise FactorError(
                    f"sets[{index}].factors: {len(after.factors)} factors, but sets[0] has {len(ladder.sets[0].factors)}"
                )
        for index, each in enumerate(ladder.sets):
            if each.layers and len(each.layers) != ladder.layers:
                raise FactorError(
                    f"sets[{index}].layers: {len(each.layers)} layers, but another set has {ladder.layers}"
                )
        if len(set(ladder.names)) != len(ladder.sets):
            raise FactorError(f"sets: names must be unique, found {quoted(list(ladder.names))}")
        return ladder


NAME_CHARACTERS = "letters, digits, '.', '_' and '-'"


def _checked_set(index: int, values: Mapping[str, Any]) -> FactorSet:
    where = f"sets[{index}]"
    if not isinstance(values, Mapping):
        raise FactorError(f"{where}: must be an object, found {quoted(values)}")
    known = set(FactorSet.__dataclass_fields__)
    if unknown := sorted(set(values) - known):
        raise FactorError(f"{where}.{quoted(unknown[0])[1:-1]}: unknown field; allowed: {', '.join(sorted(known))}")
    for field in ("name", "max_length", "factors"):
        if field not in values:
            raise FactorError(f"{where}.{field}: missing")
    name = values["name"]
    if not isinstance(name, str) or not name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        raise FactorError(f"{where}.name: {quoted(name)} must be a non-empty string of {NAME_CHARACTERS}")
    if len(name) > 64:
        raise FactorError(f"{where}.name: {len(name)} characters, at most 64 are allowed")
    max_length = whole_value(f"{where}.max_length", values["max_length"], least=1)
    start_tokens = whole_value(f"{where}.start_tokens", values.get("start_tokens", 0), least=0)
    softmax_scale = values.get("softmax_scale")
    if "softmax_scale" in values:
        softmax_scale = _positive(f"{where}.softmax_scale", softmax_scale, 1e3)
    own = _checked_factors(where, values)
    return FactorSet(name, max_length, *own, start_tokens, softmax_scale, tuple(_layers(where, values, len(own[0]))))


def _checked_factors(where: str, values: Mapping[str, Any]) -> tuple[tuple[float, ...], float]:
    factors = values["factors"]
    if not isinstance(factors, list | tuple) or not factors:
        raise FactorError(f"{where}.factors: must be a list of at least one number, found {quoted(factors)}")
    checked = tuple(_positive(f"{where}.factors[{i}]", factor, 1e9) for i, factor in enumerate(factors))
    return checked, _positive(f"{where}.scale", values.get("scale", 1.0), 1e3)


def _layers(where: str, values: Mapping[str, Any], pairs: int) -> Iterator[LayerFactors]:
    layers = values.get("layers", ())
    if not isinstance(layers, list | tuple) or ("layers" in values and not layers):
        raise FactorError(f"{where}.layers: must be a list of an object for each layer, found {quoted(layers)}")
    for index, each in enumerate(layers):
        inside = f"{where}.layers[{index}]"
        if not isinstance(each, Mapping) or not {"factors"} <= set(each) <= {"factors", "scale"}:
            raise FactorError(f"{inside}: must be an object with factors, and a scale or none, found {quoted(each)}")
        made = LayerFactors(*_checked_factors(inside, each))
        if len(made.factors) != pairs:
            raise FactorError(f"{inside}.factors: {len(made.factors)} factors, but the set has {pairs}")
        yield made


def _positive(field: str, value: Any, limit: float) -> float:
    number = positive_value(field, value)
    # Values outside are useless, and float32 rows approach 0 or infinity.
    if not 1 / limit <= number <= limit:
        raise FactorError(f"{field}: {number!r} must be from {1 / limit:g} to {limit:g}")
    return number
