"""Types of flags that several groups of them share."""

import argparse
from collections.abc import Callable


def seconds(most: float) -> Callable[[str], float]:
    """The type of a flag that is a number of seconds above 0 and at most ``most``; for anything else argparse refuses."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0 and at most {most:g}")
        return value

    return parse
