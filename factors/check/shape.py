"""Describes the shape of a factor set: its range, whether it rises, and the angles it reaches that training never saw."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.rules.rope import Rope


@dataclass(frozen=True)
class Pair:
    """One rotary pair of a set.

    Attributes:
        pair: Its index; 0 is the fastest.
        factor: Its factor.
        wavelength: Tokens per rotation, with the factor.
        turns: Rotations within the original window, without factors.
        unseen: Fraction of a rotation that the set reaches but training never saw, 0 to 1.
    """

    pair: int
    factor: float
    wavelength: float
    turns: float
    unseen: float


@dataclass(frozen=True)
class Shape:
    """The shape of a set.

    Attributes:
        lowest: The lowest factor.
        highest: The highest factor.
        below_one: Pairs with a factor below 1, which rotate faster than in training.
        falls: Pairs with a factor below the previous pair's.
        unseen: Pairs that reach angles unseen in training.
        pairs: All pairs.
    """

    lowest: float
    highest: float
    below_one: tuple[int, ...]
    falls: tuple[int, ...]
    unseen: tuple[int, ...]
    pairs: tuple[Pair, ...]


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


def warnings(found: Shape, factor_set: FactorSet, length: int) -> list[str]:
    """List the unusual properties of a set; none is an error, and published files have some of them."""
    said = []
    if found.falls:
        said.append(f"factors decrease at {_pairs(found.falls)}, as some published lists do")
    if found.below_one:
        said.append(f"factors below 1 at {_pairs(found.below_one)}, which rotate faster than in training")
    if found.unseen:
        said.append(f"angles unseen in training at {_pairs(found.unseen)}, within {length} tokens")
    if factor_set.start_tokens:
        said.append(f"start_tokens {factor_set.start_tokens}: base bound and precision apply to later positions only")
    return said


def _pairs(pairs: Sequence[int]) -> str:
    """Format pair indices with runs joined: ``pairs 3, 7 to 9``."""
    runs: list[list[int]] = []
    for pair in pairs:
        if runs and runs[-1][-1] == pair - 1:
            runs[-1].append(pair)
        else:
            runs.append([pair])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:6])
    more = f" and {len(runs) - 6} more ranges" if len(runs) > 6 else ""
    return f"{'pair' if len(pairs) == 1 else 'pairs'} {shown}{more}"
