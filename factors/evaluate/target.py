"""What is evaluated: a model on this machine or a server, asked for losses and for replies under a named factor set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

SWITCHED = "switched"
"""The rule: every sequence has the set for its length."""
SERVED = "served"
"""As a server without factor sets serves everything."""


@dataclass(frozen=True)
class Window:
    """Tokens whose losses are asked for.

    Attributes:
        ids: The whole sequence, special tokens at its start included.
        first: The first token to judge, at least 1; what stands before it is context only.
    """

    ids: Sequence[int]
    first: int


class Target(Protocol):
    """A model or a server.

    Attributes:
        sets: Names of what can be compared, the first ones being the default.
        opening: Special tokens that every sequence begins with; empty where there are none.
    """

    sets: tuple[str, ...]
    opening: tuple[int, ...]

    def longest(self, set_name: str) -> int | None:
        """The longest sequence in tokens, reply included, that can be had with a set; None where that is not known."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt as :meth:`replies` gives it to the model, special tokens and chat template included."""

    def plain_ids(self, text: str) -> list[int]:
        """Token ids of a text alone."""

    def losses(self, windows: Sequence[Window], set_name: str) -> Iterator[list[float]]:
        """Negative log-likelihoods in nats of each window's tokens from ``first`` on."""

    def replies(self, prompts: Sequence[str], set_name: str, new_tokens: int) -> Iterator[str]:
        """Greedy replies of up to ``new_tokens`` tokens."""

    def describe(self) -> dict[str, Any]:
        """What it is, for the results; another model or server must differ."""

    def describe_set(self, set_name: str) -> Any:
        """What a name stands for, as plain JSON values; another meaning must differ."""
