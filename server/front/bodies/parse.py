"""Parses long JSON bodies in pieces.

A parsing thread holds the GIL throughout a call into C, which blocks the event loop: 0.1 s for ``json.loads`` of a million
token IDs. So long objects and arrays are split first, and a long array of token IDs is decoded a slice at a time.
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from ropeswitch.server.front.bodies.faults import Fault, find_fault
from ropeswitch.server.front.bodies.token_ids import TokenIds

# Bytes decoded in one call, which takes about half a millisecond.
PIECE = 1 << 16
# Maximum bytes of a number and the comma after it.
NUMBER = 64
# Depth to which objects and arrays are split: a message's text is at the sixth level.
DEPTH = 6
SPACE = b" \t\r\n"
# Body fields in which routes accept the token IDs of prompts.
PROMPTS = ("prompt", "tokens", "token_ids")

_Object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Array = msgspec.json.Decoder(list[msgspec.Raw])
_Ids = msgspec.json.Decoder(list[int])
_Anything = msgspec.json.Decoder()


@dataclass(frozen=True)
class Parsed:
    """A body's values.

    Attributes:
        values: What ``json.loads`` returns, but with long lists of prompt token IDs as :class:`TokenIds`.
        fault: A value that cannot be sent to an engine, or None.
    """

    values: Any
    fault: Fault | None


def parse(body: bytes) -> Parsed:
    """Parse JSON.

    Raises:
        json.JSONDecodeError: for a body that is not JSON.
        UnicodeDecodeError: for an encoding that JSON does not allow.
        RecursionError: for a body that is nested too deeply.
    """
    try:
        values = _values(memoryview(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # For what only msgspec rejects, such as NaN and invalid Unicode, and for the exact place of an error.
        values = json.loads(body)
    return Parsed(values, find_fault(values))


def _values(raw: memoryview) -> Any:
    if not _begins(raw, b"{"):
        return _value(raw, DEPTH)
    values = _Object.decode(raw).items()
    return {name: (_prompts if name in PROMPTS else _value)(memoryview(each), DEPTH) for name, each in values}


def _value(raw: memoryview, depth: int) -> Any:
    if len(raw) > PIECE and depth > 0:
        if _begins(raw, b"{"):
            return {name: _value(memoryview(each), depth - 1) for name, each in _Object.decode(raw).items()}
        if _begins(raw, b"[[", b"[{"):
            return [_value(memoryview(each), depth - 1) for each in _Array.decode(raw)]
        if (slices := _slices(raw)) is not None:
            return [number for each in slices for number in each]
    return _Anything.decode(raw)


def _prompts(raw: memoryview, depth: int) -> Any:
    if len(raw) > PIECE:
        if _begins(raw, b"[["):
            return [_prompts(memoryview(each), depth) for each in _Array.decode(raw)]
        if (slices := _slices(raw)) is not None and (ids := TokenIds(slices)).smallest >= 0:
            return ids
    return _value(raw, depth)


def _begins(raw: memoryview, *starts: bytes) -> bool:
    """Whether JSON begins with one of these, ignoring whitespace."""
    return bytes(raw[:64]).translate(None, SPACE).startswith(starts)


def _slices(raw: memoryview) -> list[list[int]] | None:
    """Return the numbers of an array of whole numbers in slices, in order; None for anything else."""
    start, end = _bounds(raw)
    if start == end or (raw[start], raw[end - 1]) != (ord("["), ord("]")):
        return None
    slices = []
    start, end = start + 1, end - 1
    while start <= end:
        # The array is not copied as a whole: that takes as long as processing a slice.
        comma = bytes(raw[start + PIECE : min(start + PIECE + NUMBER, end)]).find(b",")
        if comma < 0 and start + PIECE + NUMBER < end:
            return None
        stop = end if comma < 0 else start + PIECE + comma
        try:
            numbers = _Ids.decode(b"[%b]" % bytes(raw[start:stop]))
        except msgspec.DecodeError:
            return None
        if not numbers:
            # Nothing between two commas, or after the last one.
            return None
        slices.append(numbers)
        start = stop + 1
    return slices


def _bounds(raw: memoryview) -> tuple[int, int]:
    """Return the start and end of JSON, without surrounding whitespace."""
    start, end = 0, len(raw)
    while start < end and raw[start] in SPACE:
        start += 1
    while start < end and raw[end - 1] in SPACE:
        end -= 1
    return start, end
