"""The candidates for one rung, simplest first: what is already there, the user's, every rule, and what is learned."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.factors.rules.catalogue import RULES
from ropeswitch.factors.rules.formulas import Options, Target
from ropeswitch.factors.rules.lengths import length_name
from ropeswitch.factors.rules.make import AS_PUBLISHED, attention_scale, factors_of
from ropeswitch.factors.rules.rope import Rope

# The set of the next longer rung, that of the model's window, the automatic ladder's, and what is learned.
NEXT, NATIVE, AUTO, LEARNED, BY_LAYER = "next", "native", "auto", "learned", "learned by layer"
YARN_OPTIONS = {"beta 16": Options(beta=16.0), "alpha 2": Options(alpha=2.0), "untruncated": Options(truncate=False)}


@dataclass(frozen=True)
class Candidate:
    """A set for a rung, and how it was made."""

    source: str
    factor_set: FactorSet


def automatic_set(automatic: FactorLadder, length: int) -> FactorSet:
    """Return the set that the automatic ladder has for sequences of ``length`` tokens, named after that length."""
    return replace(automatic.sets[automatic.index_for(length)], name=length_name(length), max_length=length)


def shelf(
    rope: Rope,
    automatic: FactorLadder,
    length: int,
    following: FactorSet | None = None,
    given: Sequence[FactorSet] = (),
) -> list[Candidate]:
    """Return the different candidates for sequences of up to ``length`` tokens, all named after it, simplest first.

    ``following`` is the set chosen for the next longer rung, ``given`` are the user's, of which those that reach the length
    count. Each rule is tried with its published attention scale and without any, for the window of the automatic ladder's
    first set; for a model whose first set is scaled already, as it was trained, no rule is.
    """
    native = automatic.sets[0]
    found = [] if following is None else [(NEXT, following)]
    found += [(NATIVE, native), (AUTO, automatic_set(automatic, length))]
    found += [(f"given {each.name}", each) for each in given if each.max_length >= length]
    if native.factors == (1.0,) * rope.pairs and native.scale == 1.0:
        rope = replace(rope, original_length=native.max_length)
        target = Target(length, length / native.max_length)
        tried = [(rule.name, rule, Options()) for rule in RULES]
        yarn = next(each for each in RULES if each.name == "yarn")
        tried += [(f"yarn, {name}", yarn, options) for name, options in YARN_OPTIONS.items()]
        for name, rule, options in tried:
            for attention in (AS_PUBLISHED, "none"):
                factors = factors_of(rule, rope, target, options)
                scale = attention_scale(rule, attention, target.scale, native.max_length)
                source = name if attention == AS_PUBLISHED else f"{name}, scale 1"
                found.append((source, replace(native, factors=factors, scale=scale, layers=(), start_tokens=0)))
    different: dict[object, Candidate] = {}
    for source, made in found:
        candidate = Candidate(source, replace(made, name=length_name(length), max_length=length))
        different.setdefault(made.rotates, candidate)
    return list(different.values())
