"""Numbers of flags: what is read is what was written, and everything else is refused by name."""

import argparse
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors import numbers
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.numbers import LARGEST, number, positive, tokens, whole


@given(st.integers(0, LARGEST), st.integers(0, LARGEST), st.integers(0, LARGEST))
def test_whole_numbers_keep_their_bounds(value: int, least: int, most: int) -> None:
    if least <= value <= most:
        assert whole("--n", str(value), least, most) == value
    else:
        with pytest.raises(FactorError, match=f"^--n: '{value}' must be a whole number from {least} to {most}$"):
            whole("--n", str(value), least, most)


@given(st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False))
def test_numbers_are_read_exactly(value: float) -> None:
    assert number("--x", repr(value)) == positive("--x", repr(value)) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "1e999", "0x10", "1_0", "٣", "1,5"])
def test_anything_else_is_refused(text: str) -> None:
    for parse in (whole, number, positive, lambda flag, text: tokens(flag, text, 0, "a length")):
        with pytest.raises(FactorError, match=r"^--x: .* must be "):
            parse("--x", text)
    for flag in (numbers.seconds(60), numbers.size):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a number of "):
            flag(text)


def test_flags_have_bounds_and_units_of_1024() -> None:
    assert number("--x", "0") == 0 and number("--x", "5", 0, 5) == 5
    assert [tokens("--n", text, 0, "") for text in ("0", "700", "8k", " 2M ", "1m")] == [0, 700, 8192, 1 << 21, 1 << 20]
    assert [numbers.size(text) for text in ("1", "64M", "2K", "1G")] == [1, 64 << 20, 2048, 1 << 30]
    assert numbers.seconds(60)("60") == 60.0
    with pytest.raises(FactorError, match=r"^--x: '0' must be a finite number greater than 0$"):
        positive("--x", "0")
    with pytest.raises(FactorError, match=r"^--x: '5\.1' must be a number from 0 to 5$"):
        number("--x", "5.1", 0, 5)
    for text, least in (("1", 2), ("2048m", 0), ("8kk", 0), ("1.5k", 0), ("8 k", 0)):
        with pytest.raises(FactorError):
            tokens("--n", text, least, "a length")
    for text in ("0", "64m", "1.5M", str(numbers.MOST_BYTES + 1)):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a number of bytes from 1 to"):
            numbers.size(text)
    for text in ("0", "60.01"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"above 0 and at most 60$"):
            numbers.seconds(60)(text)


@given(st.integers(-5, 2**40) | st.booleans() | st.floats() | st.text() | st.none())
def test_whole_values_are_ints_within_bounds(value: object) -> None:
    fits = type(value) is int and 1 <= value <= 100
    assert numbers.is_whole(value, 1, 100) == fits
    if fits:
        assert numbers.whole_value("n", value, 1, 100) == value
    else:
        with pytest.raises(FactorError, match=r"^n: [\s\S]* must be a whole number from 1 to 100$"):
            numbers.whole_value("n", value, 1, 100)
    assert numbers.is_number(value) == (type(value) in (int, float))
    assert numbers.whole_value("n", 2**40, most=math.inf) == 2**40


@pytest.mark.parametrize("value", ["1", True, 10**400, 0, math.nan])
def test_positive_values_are_finite_numbers_above_0(value: object) -> None:
    assert numbers.positive_value("x", 2) == 2.0
    with pytest.raises(FactorError, match=r"^x: \S* (must be a number|is too large|must be finite and greater than 0)"):
        numbers.positive_value("x", value)
