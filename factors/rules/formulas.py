"""Formulas of the rules: factors by pair, fastest first, in float64.

A factor is the rule's wavelength divided by the unscaled one at the model's own base, so a change of the base is a list
of factors, too. At scale 1, no formula changes anything.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.hf_config import attention_factor
from ropeswitch.factors.rules.rope import Rope

Factors = tuple[float, ...]


@dataclass(frozen=True)
class Target:
    """The longest sequence in tokens, and the extension ratio s."""

    length: int
    scale: float


@dataclass(frozen=True)
class Options:
    """Options of the rules; each rule takes some of them (see ``catalogue.py``).

    Attributes:
        alpha: Rotations within the window up to which a pair is interpolated by s (YaRN's alpha, ``beta_slow``).
        beta: Rotations from which on it stays unscaled (YaRN's beta, ``beta_fast``).
        truncate: Whether the two ends of YaRN's ramp are rounded outwards to whole pairs.
        dynamic_factor: The ``factor`` of transformers' dynamic NTK.
        low_freq_factor: Rotations up to which Llama 3 interpolates by s.
        high_freq_factor: Rotations from which on Llama 3 leaves a pair unscaled.
        critical_index: LongRoPE2's critical pair, or None for the theoretical one.
        above: LongRoPE2's factors from the critical pair on: one per pair, or one for all; None for s.
    """

    alpha: float = 1.0
    beta: float = 32.0
    truncate: bool = True
    dynamic_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    critical_index: int | None = None
    above: tuple[float, ...] | None = None


def position_interpolation(rope: Rope, target: Target, options: Options) -> Factors:
    """s for every pair (arXiv:2306.15595; transformers ``linear``)."""
    return (target.scale,) * rope.pairs


def ntk_aware(rope: Rope, target: Target, options: Options) -> Factors:
    """Multiply the base by ``s ** (d / (d - 2))``, which slows the slowest pair by s (arXiv:2309.00071, definition 1)."""
    return base_change(rope, rope.theta * _ntk(rope, target.scale))


def dynamic_ntk(rope: Rope, target: Target, options: Options) -> Factors:
    """NTK-aware with the ratio ``f s - (f - 1)`` (transformers ``_compute_dynamic_ntk_parameters``).

    With f = 1 the ratio is s, as in YaRN's text (arXiv:2309.00071).
    """
    return base_change(rope, rope.theta * _ntk(rope, _dynamic(target.scale, options.dynamic_factor)))


def theta_scaling(rope: Rope, target: Target, options: Options) -> Factors:
    """``theta' = theta ** log_{L / 2 pi}(L' / 2 pi)``, which keeps the critical pair (arXiv:2310.05209)."""
    return base_change(rope, scaled_theta(rope, target.length))


def scaled_theta(rope: Rope, length: int) -> float:
    """Return the base of :func:`theta_scaling` for ``length`` tokens."""
    return float(rope.theta ** (math.log(length / (2 * math.pi)) / math.log(rope.original_length / (2 * math.pi))))


def yarn_by_index(rope: Rope, target: Target, options: Options) -> Factors:
    """YaRN's NTK-by-parts as in its code and transformers: the ramp is linear in the pair's index.

    Source: ``_compute_yarn_parameters`` of transformers; the ends of the ramp are rounded outwards to whole pairs.
    """
    low, high = rope.pair_with_turns(options.beta), rope.pair_with_turns(options.alpha)
    if options.truncate:
        low, high = math.floor(low), math.ceil(high)
    # Upstream bounds the end by the rotary dimension, not by the number of pairs.
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    # Upstream's guard against a ramp of zero width.
    width = high - low if high != low else 0.001
    return _mixed(target.scale, [1 - _ramp((pair - low) / width) for pair in range(rope.pairs)])


def yarn_by_turns(rope: Rope, target: Target, options: Options) -> Factors:
    """YaRN's NTK-by-parts as in the paper: the ramp is linear in the rotations r (arXiv:2309.00071, definition 2)."""
    width = options.beta - options.alpha
    return _mixed(target.scale, [_ramp((rope.turns(pair) - options.alpha) / width) for pair in range(rope.pairs)])


def llama3(rope: Rope, target: Target, options: Options) -> Factors:
    """Llama 3.1's NTK-by-parts, with a ramp linear in r (transformers ``_compute_llama3_parameters``)."""
    low = options.low_freq_factor
    width = options.high_freq_factor - low
    if width == 0:
        # Llama 4 Scout: a step instead of the ramp.
        return _mixed(target.scale, [float(rope.turns(pair) > low) for pair in range(rope.pairs)])
    return _mixed(target.scale, [_ramp((rope.turns(pair) - low) / width) for pair in range(rope.pairs)])


def longrope2(rope: Rope, target: Target, options: Options) -> Factors:
    """Factors geometric below the critical pair and free from it on (LongRoPE2, arXiv:2502.20082, algorithms 1 and 2).

    Below pair K, the base is changed so that the geometric part reaches the factor of pair K at K:
    ``lambda_i = lambda_K ** (i / K)``.
    """
    critical = options.critical_index
    if critical is None:
        critical = min(rope.critical_dimension // 2, rope.pairs - 1)
    if not 1 <= critical < rope.pairs:
        raise FactorError(f"--critical-index: {critical} must be a pair from 1 to {rope.pairs - 1}")
    above = options.above or (target.scale,)
    if len(above) == 1:
        above *= rope.pairs - critical
    if len(above) != rope.pairs - critical:
        raise FactorError(
            f"--above: {len(above)} factors; give one for all, or one for each of the {rope.pairs - critical} pairs from "
            f"{critical} to {rope.pairs - 1}"
        )
    return tuple(above[0] ** (pair / critical) for pair in range(critical)) + above


def base_change(rope: Rope, theta: float) -> Factors:
    """Return the factors that change the base ``rope.theta`` to ``theta``."""
    return tuple((theta / rope.theta) ** (2 * pair / rope.rotary_dim) for pair in range(rope.pairs))


def equivalent_base(theta: float, factors: Factors) -> float | None:
    """Return the base with the same effect as ``factors`` at the base ``theta``, or None if there is none."""
    pairs = len(factors)
    if pairs < 2:
        return None
    base = theta * factors[-1] ** (pairs / (pairs - 1))
    geometric = ((base / theta) ** (pair / pairs) for pair in range(pairs))
    alike = all(abs(there / here - 1) < 1e-9 for here, there in zip(factors, geometric, strict=True))
    return base if alike else None


def _ntk(rope: Rope, ratio: float) -> float:
    return float(ratio ** (rope.rotary_dim / (rope.rotary_dim - 2)))


def _dynamic(ratio: float, factor: float) -> float:
    return factor * ratio - (factor - 1)


def _ramp(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _mixed(scale: float, kept: list[float]) -> Factors:
    """Mix interpolated and unscaled frequencies; ``kept`` is the unscaled share, by pair."""
    return tuple(1 / ((1 - share) / scale + share) for share in kept)


def yarn_attention(scale: float, original_length: int, slope: float = 0.1) -> float:
    """Return ``0.1 ln s + 1`` (arXiv:2309.00071, definition 3; ``get_mscale`` in transformers)."""
    return slope * math.log(scale) + 1 if scale > 1 else 1.0


# Attention scales: multipliers of cos and sin, by the extension ratio s and the original length L. They scale attention
# logits by their square.
ATTENTION: dict[str, Callable[[float, int], float]] = {
    # The LongRoPE paper (arXiv:2402.13753).
    "none": lambda scale, length: 1.0,
    "yarn": yarn_attention,
    # arXiv:2405.04434, section 3.1.4 (yarn_get_mscale with mscale 0.707).
    "deepseek-v2": lambda scale, length: yarn_attention(scale, length, 0.0707),
    # sqrt(1 + ln s / ln L), as in published LongRoPE models (_compute_longrope_parameters).
    "longrope": lambda scale, length: attention_factor({"factor": scale}, length, length),
}
