"""Token IDs whose range is known, and what stands for them where a look at each of a million would take too long."""

from collections.abc import Iterable
from typing import Any


class TokenIds(list[int]):
    """Token IDs of a prompt, none below 0.

    Attributes:
        smallest: The smallest of them.
        largest: The largest of them.
    """

    __slots__ = ("largest", "smallest")

    def __init__(self, slices: Iterable[list[int]]) -> None:
        """Join slices, none of them empty; between two of them other threads have their turn."""
        super().__init__()
        ranges = []
        for each in slices:
            ranges += [min(each), max(each)]
            self += each
        self.smallest, self.largest = min(ranges, default=0), max(ranges, default=0)


def sample(values: Any) -> list[Any] | None:
    """What stands for a prompt's token IDs, or for those of several prompts, in the validation of a request.

    Returns:
        The first ID of each prompt, in lists of the same depth; None for anything else.
    """
    if isinstance(values, TokenIds):
        return values[:1]
    if isinstance(values, list) and values and all(isinstance(each, TokenIds) for each in values):
        return [each[:1] for each in values]
    return None
