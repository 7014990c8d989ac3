"""Writes needle questions: one number hidden in a long text, after RULER (arXiv:2404.06654, section 3), reworded."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from ropeswitch.factors.evaluate.haystack import Haystack, hide

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Writer:
    """A question that can be written at any length.

    Attributes:
        make: Returns the prompt for an amount of filler; see :func:`~ropeswitch.factors.evaluate.exact_length.exact_length`.
        answers: Strings that a correct reply contains.
        depth: Share of the haystack that precedes the answer, 0 to 1.
    """

    make: Callable[[int, int], str]
    answers: tuple[str, ...]
    depth: float


def needle(rng: random.Random, haystack: Haystack, depth: float | None) -> Writer:
    """Hide the number of a made-up word in the haystack at ``depth`` (0 to 1, random if None) and ask for it at the end."""
    share = rng.random() if depth is None else depth
    word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(3))
    number = str(rng.randrange(10**6, 10**7))
    hidden = [(share, f"The special number of {word} is {number}.")]

    def make(characters: int, extra: int) -> str:
        return (
            "The text below states the special number of one word. Remember it.\n\n"
            f"{hide(haystack, hidden, characters, extra)}\n\n"
            f"Question: what is the special number of {word}?\nAnswer: the special number of {word} is"
        )

    return Writer(make, (number,), share)
