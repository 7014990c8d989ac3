"""The needle question: one number in a text, after RULER (arXiv:2404.06654, section 3), in wording of our own."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from ropeswitch.factors.evaluate.haystack import Haystack, hide

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Writer:
    """A question whose length is still open.

    Attributes:
        make: The prompt with so much filler; see :func:`~ropeswitch.factors.evaluate.exact_length.exact_length`.
        answers: What a right reply holds.
        depth: Share of the text before the place where the answer stands.
    """

    make: Callable[[int, int], str]
    answers: tuple[str, ...]
    depth: float


def needle(rng: random.Random, haystack: Haystack, depth: float | None) -> Writer:
    """The number of a made-up word, told at ``depth`` (0 to 1; drawn where None) of the haystack, asked for at the end."""
    share = rng.random() if depth is None else depth
    word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(3))
    number = str(rng.randrange(10**6, 10**7))
    hidden = [(share, f"The special number of {word} is {number}.")]

    def make(characters: int, extra: int) -> str:
        return (
            "Some words have a special number, which is told somewhere in the text below. Remember every special number.\n\n"
            f"{hide(haystack, hidden, characters, extra)}\n\n"
            f"Question: what is the special number of {word}?\nAnswer: the special number of {word} is"
        )

    return Writer(make, (number,), share)
