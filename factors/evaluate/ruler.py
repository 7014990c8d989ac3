"""Questions after RULER (arXiv:2404.06654, section 3 and appendix B): its tasks and their sizes, in wording of our own.

Scores are not RULER's published ones: the words, texts and prompts differ, and so does what a model makes of them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ropeswitch.factors.evaluate.haystack import Haystack, Repeated, hide
from ropeswitch.factors.evaluate.passkey import repeated

KEYS = 4
"""Needles of the multi-key task."""
HOPS = 4
"""Assignments from one variable to the next."""
VARIABLE_LETTERS = 5
COMMON = 10
"""Words that occur often."""
TIMES = (30, 3)
"""How often the common words and the others occur; SHORT_TIMES for prompts of fewer tokens than SHORT."""
SHORT_TIMES = (10, 1)
SHORT = 4096
FREQUENT = 3
"""Coded words that are asked for."""
CODED = 2000
"""Different coded words; word k occurs about k^-2 times as often as the first, which is no word but dots."""
LEAST_CODED = 100
ZETA_2 = 1.6449340668482264
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Writer:
    """A question whose length is still open.

    Attributes:
        make: The prompt with so much filler; see :func:`~ropeswitch.factors.evaluate.exact_length.exact_length`.
        answers: What a right reply holds.
        depth: Where the needle stands; None where there is not one place.
    """

    make: Callable[[int, int], str]
    answers: tuple[str, ...]
    depth: float | None = None


def made_up_words(rng: random.Random, count: int, syllables: int = 3) -> list[str]:
    """Different words that no language has, none of them a part of another: all are equally long."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(syllables))] = None
    return list(found)


def needle(tokens: int, rng: random.Random, haystack: Haystack, depth: float | None) -> Writer:
    """One number in a text."""
    share = rng.random() if depth is None else depth
    return _needles(rng, haystack, [share])


def multi_key(tokens: int, rng: random.Random, haystack: Haystack, depth: float | None) -> Writer:
    """KEYS numbers in a text, each of a word of its own; one of them is asked for."""
    return _needles(rng, haystack, [rng.random() for _ in range(KEYS)])


def _needles(rng: random.Random, haystack: Haystack, depths: list[float]) -> Writer:
    words = made_up_words(rng, len(depths))
    numbers = [str(rng.randrange(10**6, 10**7)) for _ in words]
    hidden = [
        (depth, f"The special number of {word} is {number}.")
        for depth, word, number in zip(depths, words, numbers, strict=True)
    ]

    def make(characters: int, extra: int) -> str:
        return (
            "Some words have a special number, which is told somewhere in the text below. Remember every special number.\n\n"
            f"{hide(haystack, hidden, characters, extra)}\n\n"
            f"Question: what is the special number of {words[0]}?\nAnswer: the special number of {words[0]} is"
        )

    return Writer(make, (numbers[0],), depths[0])


def variables(tokens: int, rng: random.Random, haystack: Haystack, depth: float | None) -> Writer:
    """A chain of assignments in the repeated filler; all HOPS + 1 variables that end up with one value are asked for."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names: dict[str, None] = {}
    while len(names) < HOPS + 1:
        names["".join(rng.choices(letters, k=VARIABLE_LETTERS))] = None
    chain = list(names)
    value = str(rng.randrange(10**4, 10**5))
    lines = [f"VAR {chain[0]} = {value}."]
    lines += [f"VAR {name} = VAR {before}." for before, name in pairwise(chain)]
    hidden = list(zip(sorted(rng.random() for _ in lines), lines, strict=True))

    def make(characters: int, extra: int) -> str:
        return (
            "Variables are assigned in the text below, some from others. Follow the assignments.\n\n"
            f"{hide(Repeated(), hidden, characters, extra)}\n\n"
            f"Question: which variables have the value {value} in the end? There are {len(chain)}.\n"
            f"Answer: the variables with the value {value} are"
        )

    return Writer(make, tuple(chain))


def common_words(tokens: int, rng: random.Random, haystack: Haystack, depth: float | None) -> Writer:
    """A numbered list in which COMMON words occur ten times as often as all the others; the former are asked for."""
    often, seldom = TIMES if tokens >= SHORT else SHORT_TIMES
    # No tokenizer makes less than a token of a word, its number and what stands between them.
    words = made_up_words(rng, COMMON + tokens // 4, syllables=4)
    common, others = words[:COMMON], words[COMMON:]
    order = rng.random()

    def make(more: int, extra: int) -> str:
        listed = [*common * often, *others[:more] * seldom]
        random.Random(order).shuffle(listed)
        lines = " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))
        return (
            "This is a numbered list of words, some of which occur more often than the others. Remember those. "
            f"{repeated(extra)}\n\n{lines}\n\nQuestion: which {COMMON} words occur most often in the list?\n"
            f"Answer: the {COMMON} words that occur most often are:"
        )

    return Writer(make, tuple(common))


def frequent_words(tokens: int, rng: random.Random, haystack: Haystack, depth: float | None) -> Writer:
    """Coded words, the k-th of which occurs about k^-2 times as often as the first (dots); the next ones are asked for."""
    words = ["....", *made_up_words(rng, CODED - 1)]
    order = rng.random()

    def make(more: int, extra: int) -> str:
        total = LEAST_CODED + more
        coded = [word for rank, word in enumerate(words, 1) for _ in range(int(total / ZETA_2 / rank**2))]
        coded += words[:1] * (total - len(coded))
        random.Random(order).shuffle(coded)
        return (
            "The text below is in code. Count how often each coded word occurs in it; dots are no word. "
            f"{repeated(extra)}\n\n{' '.join(coded)}\n\nQuestion: which {FREQUENT} coded words occur most often?\n"
            f"Answer: the {FREQUENT} coded words that occur most often are"
        )

    return Writer(make, tuple(words[1 : 1 + FREQUENT]))
