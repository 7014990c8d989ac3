"""Plans a search for a model and a length: the space, the starts, and how a candidate becomes a factor set."""

import math
from dataclasses import dataclass, replace

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.model_facts import ModelFacts
from ropeswitch.factors.numbers import positive
from ropeswitch.factors.rules import formulas
from ropeswitch.factors.rules.formulas import Options, Target
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import ONE, START_TOKENS, Candidate, Space

# LongRoPE, arXiv:2402.13753, table 4: largest factor, as a multiple of the ratio of the lengths.
ABOVE_RATIO = 1.25
# More than factor files allow, even as a multiple of a base's factors.
LARGEST = 1e6


@dataclass(frozen=True)
class Plan:
    """A space, starts in it, the factors that candidates multiply (None if they have their own), and the scale."""

    space: Space
    starts: tuple[Candidate, ...]
    base: tuple[float, ...] | None
    scale: float

    def factor_set(self, candidate: Candidate, name: str, length: int) -> FactorSet:
        """Return the factor set of a candidate."""
        return FactorSet(name, length, candidate.factors(self.base), self.scale, candidate.start_tokens)


def extension(
    facts: ModelFacts,
    settings: SearchSettings,
    base: FactorSet | None = None,
    *,
    scale: str = "longrope",
    upper: float | None = None,
) -> Plan:
    """Plan a search for a length beyond the model's current one.

    Args:
        facts: The model.
        settings: The length, and whether factors may decrease.
        base: Set that the model was fine-tuned with, or None for a pre-trained model. Candidates are multiples of its
            factors, for the ratio to its ``max_length``: most published lists of 512k and more are exact hundredths of
            their model's ``ft_`` list.
        scale: Multiplier of cos and sin: ``longrope`` is ``sqrt(1 + ln(length / window) / ln(window))``, as in the LongRoPE
            repository's code and the published Phi models; ``none`` is 1, as in the paper's equation 3; or a number.
        upper: Largest factor (or multiple); by default 1.25 times the ratio of the lengths.
    """
    window = facts.rope.original_length
    now = window if base is None else base.max_length
    ratio = settings.length / now
    if ratio <= 1:
        what = "the model's window" if base is None else f"set {base.name!r}"
        raise FactorError(
            f"--length: {settings.length} must exceed {now}, where {what} ends; use --recover for shorter lengths"
        )
    if base is not None:
        _check_pairs(facts, base)
    space = _space(facts, settings, ABOVE_RATIO * ratio if upper is None else upper)
    if scale in ("none", "longrope"):
        multiplier = formulas.ATTENTION[scale](settings.length / window, window)
    else:
        multiplier = positive("--scale", scale, allowed="longrope, none or a number above 0")
    starts = tuple(space.nearest(factors) for factors in _known(facts, ratio))
    return Plan(space, starts, None if base is None else base.factors, multiplier)


def check_recovered(length: int, extended: FactorSet) -> None:
    """Refuse to recover factors of an extended set at a length that is not shorter than the set's."""
    if length >= extended.max_length:
        raise FactorError(f"--recover: {length} must be below {extended.max_length}, where set {extended.name!r} ends")


def recovery(facts: ModelFacts, settings: SearchSettings, extended: FactorSet, *, upper: float | None = None) -> Plan:
    """Plan a search for a length below the one that the model was extended to (arXiv:2402.13753, section 3.3).

    Candidates have their own factors, as in the published 4k and 8k lists, up to ``upper``: by default the extended set's
    largest, which is below 1.25 times the ratio. They keep the extended set's scale, and it is one of the starts.
    """
    check_recovered(settings.length, extended)
    _check_pairs(facts, extended)
    space = _space(facts, settings, max(extended.factors) if upper is None else upper)
    ratio = max(settings.length / facts.rope.original_length, 1.0)
    starts = [space.nearest(factors) for factors in _known(facts, ratio)]
    own = space.nearest(extended.factors)
    if extended.start_tokens in START_TOKENS:
        own = replace(own, start_tokens=extended.start_tokens)
    return Plan(space, (*starts, own), None, extended.scale)


def _known(facts: ModelFacts, ratio: float) -> list[tuple[float, ...]]:
    """Return the factors of PI, NTK and YaRN, in this order."""
    target = Target(round(ratio * facts.rope.original_length), ratio)
    rules = (formulas.position_interpolation, formulas.ntk_aware, formulas.yarn_by_index)
    return [rule(facts.rope, target, Options()) for rule in rules]


def _space(facts: ModelFacts, settings: SearchSettings, upper: float) -> Space:
    # Round first, so that 1.25 times a decimal ratio does not lose its last hundredth.
    if not upper <= LARGEST or (hundredths := math.floor(round(upper * ONE, 6))) <= ONE:
        raise FactorError(f"--upper: {upper:g} must be a number from 1.01 to {LARGEST:g}")
    return Space(facts.rope.pairs, hundredths, settings.monotone)


def _check_pairs(facts: ModelFacts, factor_set: FactorSet) -> None:
    if factor_set.layers:
        raise FactorError(f"set {factor_set.name!r}: has factors for each layer, which a search does not change")
    if len(factor_set.factors) != facts.rope.pairs:
        raise FactorError(
            f"set {factor_set.name!r}: {len(factor_set.factors)} factors; model {facts.name!r} has {facts.rope.pairs} pairs"
        )
