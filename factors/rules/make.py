"""Makes a factor file from a rule, with one set per length."""

from collections.abc import Sequence

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.file import LadderFile
from ropeswitch.factors.rules.catalogue import Rule
from ropeswitch.factors.rules.formulas import ATTENTION, Factors, Options, Target
from ropeswitch.factors.rules.lengths import length_name
from ropeswitch.factors.rules.rope import Rope

AS_PUBLISHED = "published"
ATTENTION_CHOICES = (
    f"multiplier of cos and sin: '{AS_PUBLISHED}' (default) for the rule's own, 'none' for 1, 'yarn' for 0.1 ln s + 1, "
    "'deepseek-v2' for 0.0707 ln s + 1, 'longrope' for sqrt(1 + ln s / ln L), or a number"
)


def make(
    rule: Rule,
    rope: Rope,
    targets: Sequence[Target],
    options: Options | None = None,
    *,
    attention: str = AS_PUBLISHED,
    keep_original: bool = False,
) -> LadderFile:
    """Make the factor file of ``rule``: one set per target, by increasing length, named after its length.

    ``attention`` is ``published``, ``none``, ``yarn``, ``deepseek-v2``, ``longrope`` or a number. ``keep_original`` adds a
    first set, ``original``, that leaves sequences within the original window unscaled.
    """
    options = options or Options()
    sets = [
        {
            "name": length_name(target.length),
            "max_length": target.length,
            "factors": factors_of(rule, rope, target, options),
            "scale": attention_scale(rule, attention, target.scale, rope.original_length),
        }
        for target in targets
    ]
    if keep_original:
        sets.insert(0, {"name": "original", "max_length": rope.original_length, "factors": (1.0,) * rope.pairs})
    made = ", ".join(f"{length_name(target.length)} (s = {target.scale:g})" for target in targets)
    description = (
        f"{rule.name} from {rope.original_length} tokens and base {rope.theta:g} to {made}: {rule.formula}; "
        f"attention scale: {attention if attention != AS_PUBLISHED else rule.attention}; source: {rule.source}"
    )
    return LadderFile(FactorLadder.checked(sets), rope.theta, description)


def factors_of(rule: Rule, rope: Rope, target: Target, options: Options) -> Factors:
    """Return one divisor per rotary frequency; FactorError when a result exceeds the range of float64."""
    try:
        return rule.factors(rope, target, options)
    except FactorError:
        raise
    # Raised by the math module on overflow and for the logarithm of 0.
    except (ArithmeticError, ValueError) as error:
        given = ", ".join(f"{name} {getattr(options, name)}" for name in rule.options) or f"s {target.scale:g}"
        raise FactorError(
            f"{rule.name} at {target.length} tokens: numbers leave the range of float64 ({error}) with {given}"
        ) from error


def targets_for(rope: Rope, lengths: Sequence[int], scale: float | None = None) -> list[Target]:
    """Return targets at increasing lengths, with s as the ratio of each length to the original, or ``scale`` for all."""
    for length in lengths:
        if length < rope.original_length:
            raise FactorError(
                f"length: {length} is below the original window of {rope.original_length} tokens; "
                "rules only extend the window. Use a longer length"
            )
    if scale is not None and scale < 1:
        raise FactorError(f"scale: {scale:g} must be at least 1")
    return [Target(length, length / rope.original_length if scale is None else scale) for length in lengths]


def attention_scale(rule: Rule, attention: str, scale: float, original_length: int) -> float:
    """Return the multiplier of cos and sin at the extension ratio ``scale``; ``attention`` is as in :func:`make`."""
    if attention == AS_PUBLISHED:
        return ATTENTION[rule.attention](scale, original_length)
    if attention in ATTENTION:
        return ATTENTION[attention](scale, original_length)
    try:
        return float(attention)
    except ValueError as error:
        raise FactorError(f"--attention-scale: {attention!r} is unknown; give a {ATTENTION_CHOICES}") from error
