"""Length bands such as ``0-8k``, by prompt tokens."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ropeswitch.factors import numbers
from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorError

DEFAULT = "0-8k,8k-32k,32k-128k,128k-512k,512k-1M,1M-2M,2M-"


@dataclass(frozen=True, order=True)
class Band:
    """Prompts of more than ``above`` and at most ``upto`` tokens."""

    above: int
    upto: int | None

    def scaled(self, scale: float) -> "Band":
        """Return the band with its ends multiplied by ``scale``, at least one token wide."""
        above = round(scale * self.above)
        return Band(above, None if self.upto is None else max(above + 1, round(scale * self.upto)))

    def __contains__(self, tokens: int) -> bool:
        return self.above < tokens and (self.upto is None or tokens <= self.upto)

    def __str__(self) -> str:
        return f"{short(self.above)}-{'' if self.upto is None else short(self.upto)}"


def short(tokens: int) -> str:
    """Format a number of tokens: ``8k`` for 8192, ``2M`` for 2097152, others in full."""
    for unit, size in (("M", numbers.UNITS["m"]), ("k", numbers.UNITS["k"])):
        if tokens and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)


def tokens(text: str) -> int:
    """Parse a number of tokens such as ``700``, ``8k`` (8 * 1024) or ``2M`` (2 * 1024 * 1024)."""
    try:
        return numbers.tokens("", text, 0, "a number of tokens such as 700, 8k (8 * 1024) or 2M (2 * 1024 * 1024)")
    except FactorError as error:
        raise UsageError(str(error)) from error


def band(text: str) -> Band:
    """Parse a band such as ``0-8k`` or ``8k-``; raises UsageError if it is malformed or empty."""
    below, dash, above = text.strip().partition("-")
    if not dash:
        raise UsageError(f"band {text!r} must be written like 0-8k, or 8k- for no upper end")
    found = Band(tokens(below), tokens(above) if above else None)
    if found.upto is not None and found.upto <= found.above:
        raise UsageError(f"band {text!r} is empty: its end must be above its start")
    return found


def bands(text: str) -> tuple[Band, ...]:
    """Parse a list of bands such as ``0-8k,8k-`` and sort it; raises UsageError if two overlap."""
    found = sorted(band(part) for part in text.split(","))
    for first, second in itertools.pairwise(found):
        if first.upto is None or second.above < first.upto:
            raise UsageError(f"bands {first} and {second} overlap")
    return tuple(found)


def bands_of_sets(limits: Sequence[int]) -> tuple[Band, ...]:
    """Return one band per factor set, from the maximum length of each set."""
    edges = [0, *sorted(limits)]
    return tuple(Band(above, upto) for above, upto in itertools.pairwise(edges))
