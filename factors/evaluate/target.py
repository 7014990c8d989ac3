"""Interface of evaluation targets: local models or servers that return losses and replies under a named factor set."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ropeswitch.factors.errors import FactorError

SWITCHED = "switched"
"""Name of the ladder's rule: every sequence uses the set for its length."""
SERVED = "served"
"""Name of the only choice for a server that lists no factor sets."""


@dataclass(frozen=True)
class Window:
    """A whole sequence of token ids, special tokens included, and the first token to score, at least 1."""

    ids: Sequence[int]
    first: int


class Target(Protocol):
    """A model or a server.

    Attributes:
        sets: Names of the sets that can be compared.
        opening: Special tokens that every sequence begins with; may be empty.
    """

    sets: tuple[str, ...]
    opening: tuple[int, ...]

    def longest(self, set_name: str) -> int | None:
        """Return the most tokens that are fed to the model with a set, a reply's last one not counted; None if unknown."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt as :meth:`replies` sends it, including special tokens and chat template."""

    def plain_ids(self, text: str) -> list[int]:
        """Return the token ids of a text without special tokens."""

    def losses(self, windows: Sequence[Window], set_name: str) -> Iterator[list[float]]:
        """Yield the negative log-likelihoods in nats of each window's tokens from ``first`` on."""

    def replies(self, prompts: Sequence[str], set_name: str, new_tokens: int) -> Iterator[str]:
        """Yield greedy replies of at most ``new_tokens`` tokens."""

    def describe(self) -> dict[str, Any]:
        """Describe the target for the results; different models or servers must differ."""

    def describe_set(self, set_name: str) -> Any:
        """Describe the set behind a name as plain JSON values; different sets must differ."""


def special_tokens(text_ids: Callable[[str, bool], list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens that a tokenizer puts before and after a text; either may be empty.

    ``text_ids`` returns the token ids of a text, with special tokens or without, which must otherwise be the same.
    """
    whole, alone = text_ids("a", True), text_ids("a", False)
    for start in range(len(whole) - len(alone) + 1):
        end = start + len(alone)
        if whole[start:end] == alone:
            return tuple(whole[:start]), tuple(whole[end:])
    raise FactorError("the tokenizer changes a text's own tokens where it adds special ones, which is unsupported")
