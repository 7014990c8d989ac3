"""Parses and formats lengths in tokens: 4096, 4k, 1M."""

from itertools import pairwise

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.numbers import LARGEST, tokens
from ropeswitch.factors.quoted import quoted

CHOICES = "a whole number of tokens, with k or M for powers of 1024 as in 64k and 1M"


def parse_length(field: str, text: str) -> int:
    """Parse a number of tokens from 1 to 2147483647; a FactorError names ``field``."""
    return tokens(field, text, 1, f"{CHOICES}, up to {LARGEST}")


def parse_lengths(field: str, text: str) -> tuple[int, ...]:
    """Parse increasing lengths, separated by commas; a FactorError names ``field``."""
    lengths = tuple(parse_length(field, part) for part in text.split(","))
    if any(after <= before for before, after in pairwise(lengths)):
        raise FactorError(f"{field}: {quoted(text)} must list increasing lengths")
    return lengths


def length_name(length: int) -> str:
    """Format ``length`` tokens as briefly as possible; :func:`parse_length` restores it."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
