"""Token IDs whose range is known, and what stands for them where a look at each of a million would take too long."""

from collections.abc import Iterable
from typing import Any

import msgspec


class TokenIds(list[int]):
    """Token IDs of a prompt, none below 0.

    Attributes:
        smallest: The smallest of them.
        largest: The largest of them.
        encoded: They as a message to the engine has them; None once it was sent.
    """

    __slots__ = ("encoded", "largest", "smallest")

    def __init__(self, slices: Iterable[list[int]]) -> None:
        """Join slices, none of them empty; between two of them other threads have their turn."""
        super().__init__()
        ranges, messages = [], []
        for each in slices:
            ranges += [min(each), max(each)]
            messages.append(_items(each))
            self += each
        self.smallest, self.largest = min(ranges, default=0), max(ranges, default=0)
        self.encoded: bytes | None = b"".join([b"\xdd", len(self).to_bytes(4, "big"), *messages])


def _items(numbers: list[int]) -> memoryview:
    """The numbers as MessagePack has them in an array, without the array's own head, whose size its length decides."""
    head = 1 if len(numbers) < 1 << 4 else 3 if len(numbers) < 1 << 16 else 5
    return memoryview(msgspec.msgpack.encode(numbers))[head:]


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
