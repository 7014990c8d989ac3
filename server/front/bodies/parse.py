"""Parses long JSON bodies in pieces.

A parsing thread holds the GIL throughout a call into C, which blocks the event loop: 0.1 s for ``json.loads`` of a million
token IDs. So long objects and arrays are split first, and a long array of token IDs is decoded a slice at a time.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

# Bodies of more bytes are parsed, and texts of more characters tokenized, off the event loop; fewer take less than 1 ms.
LONG = 1 << 16
# Bytes decoded in one call, which takes about half a millisecond.
PIECE = 1 << 16
# Maximum bytes of a number and the comma after it.
NUMBER = 64
# Depth to which objects and arrays are split: a message's text is at the sixth level.
DEPTH = 6
SPACE = b" \t\r\n"
# Maximum values of a body, names included and whole numbers left out: 20,000 messages of ten tool calls have 400,000.
VALUES = 1 << 19
# Bodies of more bytes may have more values: each has a comma too.
LARGE = 2 * VALUES
# Body fields in which routes accept the token IDs of prompts.
PROMPTS = ("prompt", "tokens", "token_ids")

_Object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Array = msgspec.json.Decoder(list[msgspec.Raw])
_Ids = msgspec.json.Decoder(list[int])
_Anything = msgspec.json.Decoder()
_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# Characters outside of strings of which each other value has at least one.
_VALUE = b"[{.eEn"


class TokenIds(list[int]):
    """Token IDs of a prompt, none below 0, with the ``smallest`` and the ``largest`` of them."""

    __slots__ = ("largest", "smallest")

    def __init__(self, slices: Iterable[list[int]]) -> None:
        """Join non-empty slices; other threads can run between two of them."""
        super().__init__()
        ranges: list[int] = []
        for each in slices:
            ranges += [min(each), max(each)]
            self += each
        self.smallest, self.largest = min(ranges, default=0), max(ranges, default=0)


def sample(values: Any) -> list[Any] | None:
    """Return the prompts of a body's field with only the first ID of each :class:`TokenIds`; None if no prompt is one."""
    if isinstance(values, TokenIds):
        return values[:1]
    if not isinstance(values, list) or not any(isinstance(each, TokenIds) for each in values):
        return None
    samples = [each[:1] if isinstance(each, TokenIds) else each for each in values]
    return samples if all(isinstance(each, list) for each in samples) else None


def completed(values: Any, validated: Any) -> Any:
    """Return the validated :func:`sample` with the token IDs that were kept out of it."""
    if isinstance(values, TokenIds):
        return values
    return [each if isinstance(each, TokenIds) else other for each, other in zip(values, validated, strict=True)]


def parse(body: bytes) -> Any:
    """Return what ``json.loads`` returns, but with long lists of prompt token IDs as :class:`TokenIds`.

    Raises:
        ValueError: for a body that is not JSON, or is more than :data:`LARGE` and not strict JSON in UTF-8.
        RecursionError: for a body that is nested too deeply.
    """
    try:
        return _value(memoryview(body.strip(SPACE)), DEPTH)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if len(body) > LARGE:
            raise ValueError(str(error)) from error
        # For what only msgspec rejects, such as NaN and invalid Unicode, and for the exact place of an error.
        return json.loads(body)


def has_too_many_values(body: bytes) -> bool:
    """Whether a body has more than :data:`VALUES`, of which a message of 64 MiB can have millions; decodes nothing."""
    found, at = 0, 0 if len(body) > LARGE else len(body)
    while found <= VALUES and at < len(body):
        quote = body.find(b'"', at, at + PIECE)
        between = body[at : quote if quote >= 0 else at + PIECE]
        found += len(between) - len(between.translate(None, _VALUE)) + (quote >= 0)
        at += len(between) + (quote >= 0)
        while quote >= 0 and body[at : at + 1] not in (b'"', b""):
            text = _TEXT.match(body, at, at + PIECE)
            # No text follows a backslash at the end of the body.
            at = text.end() if text is not None and text.end() > at else len(body)
        at += quote >= 0
    return found > VALUES


def _value(raw: memoryview, depth: int, ids: bool = False) -> Any:
    """Return the value of JSON without spaces around it; ``ids`` says whether a list of numbers in it is token IDs."""
    if len(raw) <= PIECE or depth == 0:
        return _Anything.decode(raw)
    start = bytes(raw[:64]).translate(None, SPACE)
    if start.startswith(b"{"):
        top = depth == DEPTH
        found = _Object.decode(raw).items()
        return {name: _value(memoryview(each), depth - 1, top and name in PROMPTS) for name, each in found}
    if start.startswith((b"[[", b"[{")):
        return [_value(memoryview(each), depth - 1, ids) for each in _Array.decode(raw)]
    if (slices := _slices(raw)) is None:
        return _Anything.decode(raw)
    if ids and (found_ids := TokenIds(slices)).smallest >= 0:
        return found_ids
    return [number for each in slices for number in each]


def _slices(raw: memoryview) -> list[list[int]] | None:
    """Return the numbers of an array of whole numbers in slices, in order; None for anything else."""
    if (raw[0], raw[-1]) != (ord("["), ord("]")):
        return None
    slices = []
    start, end = 1, len(raw) - 1
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
