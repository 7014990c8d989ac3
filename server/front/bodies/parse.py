"""Parses JSON bodies, of which a large one may hold only so many values, and finds the token IDs of prompts in them."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

# Bodies of more bytes are parsed, and texts of more characters tokenized, off the event loop; fewer take less than 1 ms.
LONG = 1 << 16
# Bytes, or token IDs, that are looked at in one call, which holds the GIL for about a millisecond.
PIECE = 1 << 16
# Maximum values of a body, names included and whole numbers left out: 20,000 messages of ten tool calls have 400,000.
VALUES = 1 << 19
# Bodies of more bytes may have more values: each has a comma too.
LARGE = 2 * VALUES
# Body fields with several prompts; a list of numbers is one prompt, and objects are parts of one conversation.
PROMPTS = ("prompt", "input", "queries", "documents", "items", "questions", "data_1", "data_2", "text_1", "text_2")
# Body fields in which routes accept token IDs.
IDS = (*PROMPTS, "query", "tokens", "token_ids")

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
    """Return what ``json.loads`` returns, but with the prompts' lists of token IDs as :class:`TokenIds`.

    Raises:
        ValueError: for a body that is not strict JSON in UTF-8: NaN and unpaired surrogates are not.
        RecursionError: for a body that is nested too deeply.
    """
    values = msgspec.json.decode(body)
    for name in IDS if isinstance(values, dict) else ():
        if isinstance(found := values.get(name), list):
            values[name] = _token_ids(found)
            if values[name] is found:
                found[:] = map(_token_ids, found)
    return values


def _token_ids(values: Any) -> Any:
    """Return a list of whole numbers from 0, of at most 63 bits, as :class:`TokenIds`; any other value as it is."""
    if not isinstance(values, list):
        return values
    slices = [values[start : start + PIECE] for start in range(0, len(values), PIECE)]
    if not all(set(map(type, each)) == {int} for each in slices):
        return values
    ids = TokenIds(slices)
    return ids if ids and ids.smallest >= 0 and ids.largest < 2**63 else values


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
