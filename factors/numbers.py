"""Numbers as people write them in flags: 16, 0.5, 1e-3, and tokens such as 4096, 64k and 2M."""

import argparse
import math
import re
from collections.abc import Callable
from typing import TypeVar

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.quoted import quoted

NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
TOKENS = re.compile(r"(\d{1,10})([kKmM]?)", re.ASCII)
UNITS = {"": 1, "k": 1024, "m": 1024**2}
LARGEST = 2**31 - 1
Number = TypeVar("Number", int, float)


def whole(field: str, text: str, least: int = 1, most: int = LARGEST, allowed: str = "") -> int:
    """The whole number that ``text`` says; ``allowed`` is what the error says of the numbers from ``least`` to ``most``.

    Raises:
        FactorError: naming ``field``, the text and what is allowed.
    """
    if text.isascii() and text.isdigit() and len(text) <= 12 and least <= int(text) <= most:
        return int(text)
    raise _refused(field, text, allowed or f"a whole number from {least} to {most}")


def number(field: str, text: str, least: float = 0.0, most: float = math.inf, allowed: str = "") -> float:
    """The finite number that ``text`` says, without a sign; arguments and errors as in :func:`whole`."""
    if NUMBER.fullmatch(text.strip()) and least <= float(text) <= most and math.isfinite(float(text)):
        return float(text)
    raise _refused(field, text, allowed or f"a number from {least:g} to {most:g}")


def positive(field: str, text: str, most: float = math.inf, allowed: str = "a finite number greater than 0") -> float:
    """The finite number above 0 that ``text`` says; arguments and errors as in :func:`whole`."""
    return number(field, text, math.ulp(0.0), most, allowed)


def tokens(field: str, text: str, least: int, allowed: str) -> int:
    """The tokens that ``text`` says, with k and M for 1024 and 1024 * 1024; arguments and errors as in :func:`whole`."""
    match = TOKENS.fullmatch(text.strip())
    if match and least <= (found := int(match[1]) * UNITS[match[2].lower()]) <= LARGEST:
        return found
    raise _refused(field, text, allowed)


def flag(parse: Callable[[str, str, Number, Number], Number], least: Number, most: Number) -> Callable[[str], Number]:
    """:func:`whole` or :func:`number` within bounds as the type of a flag; argparse names the flag itself."""

    def of_text(text: str) -> Number:
        try:
            return parse("", text, least, most)
        except FactorError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return of_text


def _refused(field: str, text: str, allowed: str) -> FactorError:
    return FactorError(f"{field}: {quoted(text)} must be {allowed}".removeprefix(": "))
