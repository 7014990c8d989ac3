"""Long JSON bodies to Python values, in pieces.

A thread that parses keeps the interpreter's lock for as long as one call into C takes: 0.1 s for ``json.loads`` of a million
token IDs, and the event loop stands still. Here long objects and arrays are taken apart first, and a long array of token IDs
is decoded a slice at a time.
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from ropeswitch.server.ingest.faults import Fault, find_fault
from ropeswitch.server.ingest.token_ids import TokenIds

# Bytes that are decoded in one call, which take about half a millisecond.
PIECE = 1 << 16
# Bytes within which a number and the comma behind it end.
NUMBER = 64
# How deep objects and arrays are taken apart: a message's text lies at the sixth level.
DEPTH = 6
SPACE = b" \t\r\n"
# The fields of a body in which routes take the token IDs of prompts.
PROMPTS = ("prompt", "tokens", "token_ids")

_Object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Array = msgspec.json.Decoder(list[msgspec.Raw])
_Ids = msgspec.json.Decoder(list[int])
_Anything = msgspec.json.Decoder()


@dataclass(frozen=True)
class Parsed:
    """A body's values.

    Attributes:
        values: What ``json.loads`` makes of it; the token IDs of its prompts as :class:`TokenIds`, where they are many.
        fault: What of it could be sent to no engine, if anything.
    """

    values: Any
    fault: Fault | None


def parse(body: bytes) -> Parsed:
    """Parse JSON.

    Raises:
        json.JSONDecodeError: for a body that is not JSON.
        UnicodeDecodeError: for one in no encoding that JSON may have.
        RecursionError: for one that is nested too deeply.
    """
    try:
        values = _values(memoryview(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # What msgspec is stricter about, such as NaN and odd text, and the exact place of an error.
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
    """Whether JSON begins with one of these, whatever space lies between."""
    return bytes(raw[:64]).translate(None, SPACE).startswith(starts)


def _slices(raw: memoryview) -> list[list[int]] | None:
    """The numbers of an array of whole numbers, in its order; None for anything else."""
    start, end = _bounds(raw)
    if start == end or (raw[start], raw[end - 1]) != (ord("["), ord("]")):
        return None
    slices = []
    start, end = start + 1, end - 1
    while start <= end:
        # No copy is made of the whole array: it takes as long as all of a slice.
        comma = bytes(raw[start + PIECE : min(start + PIECE + NUMBER, end)]).find(b",")
        if comma < 0 and start + PIECE + NUMBER < end:
            return None
        stop = end if comma < 0 else start + PIECE + comma
        try:
            numbers = _Ids.decode(b"[%b]" % bytes(raw[start:stop]))
        except msgspec.DecodeError:
            return None
        if not numbers:
            # Nothing between two commas, or behind the last one.
            return None
        slices.append(numbers)
        start = stop + 1
    return slices


def _bounds(raw: memoryview) -> tuple[int, int]:
    """Where JSON begins and ends, without the space around it."""
    start, end = 0, len(raw)
    while start < end and raw[start] in SPACE:
        start += 1
    while start < end and raw[end - 1] in SPACE:
        end -= 1
    return start, end
