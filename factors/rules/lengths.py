"""Lengths in tokens as people write them: 4096, 4k, 1M."""

import re
from itertools import pairwise

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.quoted import quoted

LENGTH = re.compile(r"(\d{1,10})([kKmM]?)", re.ASCII)
UNITS = {"": 1, "k": 1024, "m": 1024**2}
CHOICES = "a whole number of tokens, or thousands of 1024 as in 64k and 1M"


def parse_length(field: str, text: str) -> int:
    """The tokens that ``text`` says.

    Raises:
        FactorError: naming ``field`` where it is no length from 1 to 2147483647.
    """
    match = LENGTH.fullmatch(text.strip())
    tokens = int(match[1]) * UNITS[match[2].lower()] if match else 0
    if not 1 <= tokens < 2**31:
        raise FactorError(f"{field}: {quoted(text)} must be {CHOICES}, up to {2**31 - 1}")
    return tokens


def parse_lengths(field: str, text: str) -> tuple[int, ...]:
    """Rising lengths, separated by commas.

    Raises:
        FactorError: naming ``field`` where one is wrong or they do not rise.
    """
    lengths = tuple(parse_length(field, part) for part in text.split(","))
    if any(after <= before for before, after in pairwise(lengths)):
        raise FactorError(f"{field}: {quoted(text)} must rise from length to length")
    return lengths


def length_name(tokens: int) -> str:
    """The shortest way to write ``tokens``; :func:`parse_length` of it gives them back."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
