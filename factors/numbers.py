"""Parses the numbers of flags (16, 0.5, 1e-3, 64k tokens, 64M bytes) and checks those of JSON fields."""

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

from ropeswitch.factors.errors import FactorError, FieldError
from ropeswitch.factors.quoted import quoted

NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
TOKENS = re.compile(r"(\d{1,10})([kKmM]?)", re.ASCII)
UNITS = {"": 1, "k": 1024, "m": 1024**2}
BYTES = re.compile(r"(\d{1,16})([KMG]?)", re.ASCII)
BYTE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGEST = 2**31 - 1
MOST_BYTES = 2**53
Number = TypeVar("Number", int, float)


def whole(field: str, text: str, least: int = 1, most: int = LARGEST, allowed: str = "") -> int:
    """Parse a whole number from ``least`` to ``most``; a FactorError names ``field``, the text and what is ``allowed``."""
    if text.isascii() and text.isdigit() and len(text) <= 16 and least <= int(text) <= most:
        return int(text)
    raise _refused(field, text, allowed or f"a whole number from {least} to {most}")


def number(field: str, text: str, least: float = 0.0, most: float = math.inf, allowed: str = "") -> float:
    """Parse a finite number without a sign; arguments and errors as in :func:`whole`."""
    if NUMBER.fullmatch(text.strip()) and least <= float(text) <= most and math.isfinite(float(text)):
        return float(text)
    raise _refused(field, text, allowed or f"a number from {least:g} to {most:g}")


def positive(field: str, text: str, most: float = math.inf, allowed: str = "a finite number greater than 0") -> float:
    """Parse a finite number above 0; arguments and errors as in :func:`whole`."""
    return number(field, text, math.ulp(0.0), most, allowed)


def tokens(field: str, text: str, least: int, allowed: str) -> int:
    """Parse a token count, k and M meaning 1024 and 1024 * 1024; arguments and errors as in :func:`whole`."""
    match = TOKENS.fullmatch(text.strip())
    if match and least <= (found := int(match[1]) * UNITS[match[2].lower()]) <= LARGEST:
        return found
    raise _refused(field, text, allowed)


def size(text: str) -> int:
    """Parse a number of bytes up to :data:`MOST_BYTES`, with K, M and G for powers of 1024; an argparse type."""
    match = BYTES.fullmatch(text)
    value = int(match[1]) * BYTE_UNITS[match[2]] if match else 0
    if not 1 <= value <= MOST_BYTES:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} must be a number of bytes from 1 to {MOST_BYTES}, such as 65536 or 64M"
        )
    return value


def seconds(most: float) -> Callable[[str], float]:
    """Return an argparse type for seconds above 0 and at most ``most``."""
    return flag(number, math.ulp(0.0), most, f"a number of seconds above 0 and at most {most:g}")


def flag(
    parse: Callable[[str, str, Number, Number, str], Number], least: Number, most: Number, allowed: str = ""
) -> Callable[[str], Number]:
    """Return an argparse type from :func:`whole` or :func:`number` with bounds; argparse adds the flag's name."""

    def of_text(text: str) -> Number:
        try:
            return parse("", text, least, most, allowed)
        except FactorError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return of_text


def is_whole(value: Any, least: int = 1, most: float = LARGEST) -> TypeGuard[int]:
    """Whether a JSON value is a whole number from ``least`` to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a JSON value is a number, including infinity and NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_value(field: str, value: Any, least: int = 1, most: float = LARGEST, allowed: str = "") -> int:
    """Return a JSON value that is a whole number from ``least`` to ``most``; errors as in :func:`whole`."""
    if not is_whole(value, least, most):
        span = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise _refused(field, value, allowed or f"a whole number {span}")
    return value


def number_value(field: str, value: Any, allowed: str = "a number") -> float:
    """Return a JSON number as a float; errors as in :func:`whole`, and for a number too large for a float."""
    if not is_number(value):
        raise _refused(field, value, allowed)
    try:
        return float(value)
    except OverflowError as error:
        raise FactorError(f"{field}: {quoted(value)} is too large") from error


def positive_value(field: str, value: Any, allowed: str = "a number") -> float:
    """Return a JSON number that is finite and above 0; errors as in :func:`number_value`."""
    found = number_value(field, value, allowed)
    if not math.isfinite(found) or found <= 0:
        raise FactorError(f"{field}: {found!r} must be finite and greater than 0")
    return found


def _refused(field: str, value: Any, allowed: str) -> FactorError:
    if not field:  # argparse adds the flag's name
        return FactorError(f"{quoted(value)} must be {allowed}")
    return FieldError(field, "{value} must be {allowed}", value=quoted(value), allowed=allowed)
