"""Lengths in tokens as people write them: 4096, 4k, 1M."""

from itertools import pairwise

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.numbers import LARGEST, tokens
from ropeswitch.factors.quoted import quoted

CHOICES = "a whole number of tokens, or thousands of 1024 as in 64k and 1M"


def parse_length(field: str, text: str) -> int:
    """The number of tokens written as ``text``.

    Raises:
        FactorError: naming ``field`` where it is no length from 1 to 2147483647.
    """
    return tokens(field, text, 1, f"{CHOICES}, up to {LARGEST}")


def parse_lengths(field: str, text: str) -> tuple[int, ...]:
    """Rising lengths, separated by commas.

    Raises:
        FactorError: naming ``field`` where one is wrong or they do not rise.
    """
    lengths = tuple(parse_length(field, part) for part in text.split(","))
    if any(after <= before for before, after in pairwise(lengths)):
        raise FactorError(f"{field}: {quoted(text)} must rise from length to length")
    return lengths


def length_name(length: int) -> str:
    """The shortest way to write ``length`` tokens; :func:`parse_length` of it gives them back."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
