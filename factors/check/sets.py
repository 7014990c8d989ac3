"""Runs all checks of a factor file's sets, and formats the findings as text and JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.rules.formulas import equivalent_base
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.text_table import table


@dataclass(frozen=True)
class Pair:
    """A rotary pair (0 is the fastest), with its factor, and its wavelength in tokens with that factor.

    ``turns`` are its rotations within the original window without factors; ``unseen`` is the fraction of a rotation, 0 to 1,
    that the set reaches but training never saw.
    """

    pair: int
    factor: float
    wavelength: float
    turns: float
    unseen: float


@dataclass(frozen=True)
class Shape:
    """The lowest and highest factor, pairs with a factor below 1 or below the previous pair's, and with unseen angles."""

    lowest: float
    highest: float
    below_one: tuple[int, ...]
    falls: tuple[int, ...]
    unseen: tuple[int, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class SetReport:
    """Results for one set up to ``length`` tokens; ``equivalent_base`` has its effect without factors, if any has."""

    name: str
    length: int
    shape: Shape
    warnings: tuple[str, ...]
    equivalent_base: float | None


def check(rope: Rope, factor_set: FactorSet, length: int | None = None) -> SetReport:
    """Check a factor set up to its ``max_length``, or up to ``length`` tokens."""
    length = length or factor_set.max_length
    form = shape(rope, factor_set, length)
    return SetReport(
        name=factor_set.name,
        length=length,
        shape=form,
        warnings=(*_warnings(form, length), *("its layers were not checked",) * bool(factor_set.layers)),
        equivalent_base=equivalent_base(rope.theta, factor_set.factors),
    )


def shape(rope: Rope, factor_set: FactorSet, length: int) -> Shape:
    """Return the shape of ``factor_set`` for sequences of up to ``length`` tokens.

    A pair whose wavelength exceeds the original window has seen only the angles up to the window's end
    (arXiv:2310.05209; LongRoPE2, arXiv:2502.20082, equation 9); all others have seen every angle.
    """
    factors = factor_set.factors
    pairs = tuple(_pair(rope, pair, factor, length) for pair, factor in enumerate(factors))
    return Shape(
        lowest=min(factors),
        highest=max(factors),
        below_one=tuple(pair for pair, factor in enumerate(factors) if factor < 1),
        falls=tuple(pair for pair, (before, factor) in enumerate(pairwise(factors), start=1) if factor < before),
        unseen=tuple(each.pair for each in pairs if each.unseen > 0),
        pairs=pairs,
    )


def _pair(rope: Rope, pair: int, factor: float, length: int) -> Pair:
    wavelength = rope.wavelength(pair) * factor
    turns = rope.turns(pair)
    reached = min((length - 1) / wavelength, 1.0)
    return Pair(pair, factor, wavelength, turns, max(0.0, reached - turns) if turns < 1 else 0.0)


def _warnings(found: Shape, length: int) -> list[str]:
    """List the unusual properties of a set; none is an error, and published files have some of them."""
    warnings = []
    if found.falls:
        warnings.append(f"factors decrease at {_ranges(found.falls)}, as some published lists do")
    if found.below_one:
        warnings.append(f"factors below 1 at {_ranges(found.below_one)}, which rotate faster than in training")
    if found.unseen:
        warnings.append(f"angles unseen in training at {_ranges(found.unseen)}, within {length} tokens")
    return warnings


def _ranges(pairs: Sequence[int]) -> str:
    """Format pair indices with runs joined: ``pairs 3, 7 to 9``."""
    runs: list[list[int]] = []
    for pair in pairs:
        if runs and runs[-1][-1] == pair - 1:
            runs[-1].append(pair)
        else:
            runs.append([pair])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"{'pair' if len(pairs) == 1 else 'pairs'} {shown}"


def to_json(rope: Rope, sets: Sequence[SetReport]) -> dict[str, Any]:
    """Return the findings as plain JSON values."""
    critical = {"critical_dimension": rope.critical_dimension, "critical_pair": rope.critical_pair}
    return {"rope": asdict(rope) | critical, "sets": [asdict(each) for each in sets]}


def to_text(rope: Rope, sets: Sequence[SetReport]) -> str:
    """Format the findings as text tables."""
    head = ("set", "tokens", "lowest", "highest", "rising", "pairs with unseen angles", "equivalent base")
    shapes: list[tuple[str, ...]] = [head]
    for each in sets:
        form = each.shape
        ends = (f"{form.lowest:.6g}", f"{form.highest:.6g}", "no" if form.falls else "yes")
        own = "none" if each.equivalent_base is None else f"{each.equivalent_base:.6g}"
        shapes.append((each.name, str(each.length), *ends, f"{len(form.unseen)} of {len(form.pairs)}", own))
    about = f"rotary dimension {rope.rotary_dim}, base {rope.theta:g}, original window {rope.original_length} tokens\n"
    blocks = [about + rope.critical_note, table(shapes)]
    if found := [f"warning: set {each.name}: {warning}" for each in sets for warning in each.warnings]:
        blocks.append("\n".join(found))
    return "\n\n".join(blocks)
