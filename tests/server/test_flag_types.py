"""Types of flags that several groups of them share."""

from argparse import ArgumentTypeError

import pytest

from ropeswitch.server.flag_types import seconds


@pytest.mark.parametrize("text", ["abc", "nan", "inf", "0", "-1", "-0.5", "-inf", "60.01", "1e400", "1 s", ""])
def test_what_is_no_number_of_seconds(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        seconds(60)(text)
    assert str(refused.value) == f"{text!r} must be a number of seconds above 0 and at most 60"


def test_seconds_up_to_the_most() -> None:
    assert [seconds(0.5)(text) for text in ("1e-3", "0.5")] == [0.001, 0.5]
