"""Finds values that JSON allows but that cannot be sent to an engine: messages to engines and workers have other limits."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ropeswitch.server.front.bodies.token_ids import TokenIds

# Maximum depth of nested objects and arrays. Requests reach workers through Python's pickle, which fails at about 490.
DEPTH = 128
# Maximum characters of a name in a path.
_NAME = 80
_HALF = re.compile("[\ud800-\udfff]")
# Characters searched in one call.
CHARACTERS = 1 << 16
ODD_TEXT = "Input should be valid Unicode text; it has an unpaired surrogate"
LARGE_NUMBER = f"Input should be a whole number from {-(2**63)} to {2**63 - 1}"
# Fields with chat messages; vLLM parses the arguments of their tool calls.
_CHATS = ("messages", "input")
# Maximum number of messages, further parts of messages, tools and documents: vLLM validates each, for 2 to 300 microseconds,
# and all requests wait.
PARTS = 20_000
_PROMPTS = ("prompt", "input", "items")
_VALIDATED = (*_CHATS, *_PROMPTS, "tools", "documents", "query", "queries", "data_1", "data_2", "text_1", "text_2")
TOO_MANY = f"Input should have at most {PARTS} messages, parts of messages, tools and documents in all"
TOO_DEEP = f"Input should have at most {DEPTH} levels of nested objects and arrays"


@dataclass(frozen=True)
class Fault:
    """A value that is refused.

    Attributes:
        place: The names and indices that lead to the value; for an invalid name, to its object.
        message: The error message for the client.
    """

    place: tuple[str | int, ...]
    message: str


def field_path(place: Iterable[str | int]) -> str:
    """Return the path of a value, such as ``messages[0].role``, from the names and indices that lead to it."""
    steps = (f"[{each}]" if isinstance(each, int) else f".{each[:_NAME]}" for each in place)
    return "".join(steps).removeprefix(".")


def find_fault(body: Any) -> Fault | None:
    """Return a fault in a body's values, or None: an unpaired surrogate, too large a number, too many levels or parts."""
    if isinstance(body, str | int):
        return _of_scalar(body, ())
    parts = 0
    left: list[tuple[Any, tuple[str | int, ...]]] = [(body, ())]
    while left:
        values, place = left.pop()
        if isinstance(values, TokenIds):
            continue  # already range-checked
        if len(place) > DEPTH:
            return Fault(place[:1], TOO_DEEP)
        if isinstance(values, dict):
            for name, value in values.items():
                found = _of_scalar(name, place) or _of_scalar(value, (*place, name))
                if found is None and name == "arguments" and place and place[0] in _CHATS:
                    found = _of_arguments(value, (*place, name))
                if found is not None:
                    return found
                if isinstance(value, dict | list):
                    left.append((value, (*place, name)))
        elif isinstance(values, list):
            parts += _parts(values, place)
            if parts > PARTS:
                return Fault(place, TOO_MANY)
            for index, value in enumerate(values):
                # Each item of a long list is checked, so the common case comes first.
                if type(value) is int and -(2**63) <= value < 2**63:
                    continue
                if (found := _of_scalar(value, (*place, index))) is not None:
                    return found
                if isinstance(value, dict | list):
                    left.append((value, (*place, index)))
    return None


def _parts(values: list[Any], place: tuple[str | int, ...]) -> int:
    """Return how many messages, further parts of messages, tools and documents a list has; free-form fields have none."""
    if not place or place[0] not in _VALIDATED or "input" in place[1:]:
        return 0
    if len(place) > 2 and place[0] in _CHATS:
        # Clients may send one part per message.
        return max(len(values) - 1, 0)
    # A prompt's token IDs are checked when they are parsed, which are a list in a list of prompts.
    ids = isinstance(place[-1], int) and place[0] in _PROMPTS
    return sum(isinstance(each, dict) or (ids and not isinstance(each, int)) for each in values)


def _of_scalar(value: Any, place: tuple[str | int, ...]) -> Fault | None:
    if isinstance(value, str):
        return Fault(place, ODD_TEXT) if _is_odd(value) else None
    if type(value) is int and not -(2**63) <= value < 2**63:
        return Fault(place, LARGE_NUMBER)
    return None


def _of_arguments(text: Any, place: tuple[str | int, ...]) -> Fault | None:
    """Return the fault of a text whose JSON is nested too deeply, or None; upstream's parser would end with a 500."""
    if not isinstance(text, str) or text.count("[") + text.count("{") <= DEPTH:
        return None
    try:
        values = json.loads(text)
    except RecursionError:
        return Fault(place, TOO_DEEP)
    except ValueError:
        # Not JSON, which upstream takes for an empty object.
        return None
    level = [values] if isinstance(values, dict | list) else []
    for _ in range(DEPTH):
        parts = (part for each in level for part in (each.values() if isinstance(each, dict) else each))
        level = [part for part in parts if isinstance(part, dict | list)]
    return Fault(place, TOO_DEEP) if level else None


def _is_odd(text: str) -> bool:
    # Most text is ASCII, and is known to be. Searching all of a long text in one call would hold the GIL.
    return not text.isascii() and any(_HALF.search(text, at, at + CHARACTERS) for at in range(0, len(text), CHARACTERS))
