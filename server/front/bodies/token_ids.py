"""Token IDs whose range is known, and their stand-ins where checking each of a million would take too long."""

from collections.abc import Iterable
from typing import Any


class TokenIds(list[int]):
    """Token IDs of a prompt, none below 0.

    Attributes:
        smallest: The smallest ID.
        largest: The largest ID.
    """

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
    """Return a short stand-in for the token IDs of one or several prompts, for the validation of a request.

    Returns:
        The first ID of each prompt that is :class:`TokenIds`, and other lists unchanged; None if no prompt is one.
    """
    if isinstance(values, TokenIds):
        return values[:1]
    if not isinstance(values, list) or not all(isinstance(each, list) for each in values):
        return None
    if any(isinstance(each, TokenIds) for each in values):
        return [each[:1] if isinstance(each, TokenIds) else each for each in values]
    return None


def completed(values: Any, validated: Any) -> Any:
    """Return the validated :func:`sample` with the token IDs that were kept out of it."""
    if isinstance(values, TokenIds):
        return values
    return [each if isinstance(each, TokenIds) else other for each, other in zip(values, validated, strict=True)]
