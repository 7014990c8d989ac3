"""What JSON can hold and no engine can be sent: messages to engines and workers have other limits."""

import re
from dataclasses import dataclass
from typing import Any

from ropeswitch.server.ingest.token_ids import TokenIds

# Nested objects and arrays. Requests reach workers through Python's pickle, which fails at about 490.
DEPTH = 128
_HALF = re.compile("[\ud800-\udfff]")
# Characters that are looked at in one call.
CHARACTERS = 1 << 16
ODD_TEXT = "Input should be valid Unicode text; it has half of a surrogate pair"
LARGE_NUMBER = f"Input should be a whole number from {-(2**63)} to {2**63 - 1}"
TOO_DEEP = f"Input should have at most {DEPTH} objects and arrays in each other"


@dataclass(frozen=True)
class Fault:
    """A value that is refused.

    Attributes:
        kind: As pydantic names kinds of errors.
        place: The names and indices that lead to it; of a name, where its object is.
        message: For the client.
    """

    kind: str
    place: tuple[str | int, ...]
    message: str


def find_fault(body: Any) -> Fault | None:
    """A fault of a body's values, if there is one: half a surrogate pair, a large number, or depth."""
    if isinstance(body, str | int):
        return _of_scalar(body, ())
    left: list[tuple[Any, tuple[str | int, ...]]] = [(body, ())]
    while left:
        values, place = left.pop()
        if isinstance(values, TokenIds):
            continue  # whose range is known
        if len(place) > DEPTH:
            return Fault("too_deep", place[:1], TOO_DEEP)
        if isinstance(values, dict):
            for name, value in values.items():
                found = _of_scalar(name, place) or _of_scalar(value, (*place, name))
                if found is not None:
                    return found
                if isinstance(value, dict | list):
                    left.append((value, (*place, name)))
        elif isinstance(values, list):
            for index, value in enumerate(values):
                # Of a long list each is looked at, so that the common case comes first.
                if type(value) is int and -(2**63) <= value < 2**63:
                    continue
                if (found := _of_scalar(value, (*place, index))) is not None:
                    return found
                if isinstance(value, dict | list):
                    left.append((value, (*place, index)))
    return None


def _of_scalar(value: Any, place: tuple[str | int, ...]) -> Fault | None:
    if isinstance(value, str):
        return Fault("string_unicode", place, ODD_TEXT) if _is_odd(value) else None
    if type(value) is int and not -(2**63) <= value < 2**63:
        return Fault("int_parsing_size", place, LARGE_NUMBER)
    return None


def _is_odd(text: str) -> bool:
    # Most text is ASCII, and is known to be. A search through all of a long one would keep the interpreter's lock.
    return not text.isascii() and any(_HALF.search(text, at, at + CHARACTERS) for at in range(0, len(text), CHARACTERS))
