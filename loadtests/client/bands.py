"""Length bands, such as ``0-8k``: by the tokens of a request's prompt."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ropeswitch.factors import numbers
from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorError

DEFAULT = "0-8k,8k-32k,32k-128k,128k-512k,512k-1M,1M-2M,2M-"


@dataclass(frozen=True, order=True)
class Band:
    """Prompts of more than ``above`` tokens and up to ``upto``; without an upper end where ``upto`` is None.

    Attributes:
        above: Tokens, exclusive.
        upto: Tokens, inclusive.
    """

    above: int
    upto: int | None

    def scaled(self, scale: float) -> "Band":
        """The band whose ends are multiplied by ``scale``; at least a token wide."""
        above = round(scale * self.above)
        return Band(above, None if self.upto is None else max(above + 1, round(scale * self.upto)))

    def __contains__(self, tokens: int) -> bool:
        return self.above < tokens and (self.upto is None or tokens <= self.upto)

    def __str__(self) -> str:
        return f"{short(self.above)}-{'' if self.upto is None else short(self.upto)}"


def short(tokens: int) -> str:
    """``8k`` for 8192, ``2M`` for 2097152; other counts in full."""
    for unit, size in (("M", numbers.UNITS["m"]), ("k", numbers.UNITS["k"])):
        if tokens and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)


def tokens(text: str) -> int:
    """The number that ``8k`` (8 * 1024), ``2M`` (2 * 1024 * 1024) or ``700`` stands for.

    Raises:
        UsageError: where it is none of these.
    """
    try:
        return numbers.tokens("", text, 0, "a number of tokens such as 700, 8k (8 * 1024) or 2M (2 * 1024 * 1024)")
    except FactorError as error:
        raise UsageError(str(error)) from error


def band(text: str) -> Band:
    """The band written ``0-8k`` or ``8k-``.

    Raises:
        UsageError: where it is written otherwise, or is empty.
    """
    below, dash, above = text.strip().partition("-")
    if not dash:
        raise UsageError(f"band {text!r} must be written as 0-8k, or 8k- for all above")
    found = Band(tokens(below), tokens(above) if above else None)
    if found.upto is not None and found.upto <= found.above:
        raise UsageError(f"band {text!r} is empty: its end must be above its start")
    return found


def bands(text: str) -> tuple[Band, ...]:
    """The bands of a list such as ``0-8k,8k-``, in order.

    Raises:
        UsageError: where one is wrong, or two overlap.
    """
    found = sorted(band(part) for part in text.split(","))
    for first, second in itertools.pairwise(found):
        if first.upto is None or second.above < first.upto:
            raise UsageError(f"bands {first} and {second} overlap")
    return tuple(found)


def bands_of_sets(limits: Sequence[int]) -> tuple[Band, ...]:
    """A band for every factor set of a ladder, from the lengths that its sets reach."""
    edges = [0, *sorted(limits)]
    return tuple(Band(above, upto) for above, upto in itertools.pairwise(edges))
