"""The pass-key prompt of the LongRoPE paper (arXiv:2402.13753, appendix), which is that of Landmark Attention
(Mohtashami and Jaggi, arXiv:2305.16300): a number stated twice somewhere in a repetitive text.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ropeswitch.factors.evaluate.exact_length import cut_at_word, exact_length

PASSKEY = "passkey"
"""Name of the task."""
OPENING = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
QUESTION = "What is the pass key? The pass key is"
KEY_DIGITS = 5
REPLY_TOKENS = 10
"""Tokens to generate per reply, as in the LongRoPE repository's evaluation."""
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Question:
    """One prompt.

    Attributes:
        text: The prompt.
        key: The number to find.
        depth: Share of the filler before the key's line, 0 to 1.
    """

    text: str
    key: str
    depth: float


def random_key(rng: random.Random) -> str:
    """Return a number of KEY_DIGITS digits without a leading 0."""
    return str(rng.randrange(10 ** (KEY_DIGITS - 1), 10**KEY_DIGITS))


def statement(key: str) -> str:
    """Return the line to find."""
    return f"The pass key is {key}. Remember it. {key} is the pass key."


def repeated(characters: int) -> str:
    """Return the first ``characters`` characters of the repeated filler."""
    return (FILLER * (characters // len(FILLER) + 1))[:characters]


def passkey_text(key: str, depth: float, characters: int, extra: int = 0) -> str:
    """Return the whole prompt with ``characters`` characters of filler, a share ``depth`` (0 to 1) before the key's line.

    Parts are separated by line breaks, as in the LongRoPE repository (evaluation/passkey.py). Filler before the key ends
    with a whole word. Filler after it, which gets the ``extra`` characters, may end inside a word.
    """
    before = cut_at_word(repeated(characters), round(depth * characters))
    after = repeated(characters - len(before) + extra)
    return "\n".join(part for part in (OPENING, before, statement(key), after, QUESTION) if part)


def ask(encode: Callable[[str], list[int]], tokens: int, rng: random.Random) -> Question:
    """Return a question of exactly ``tokens`` tokens, with a random key at a random depth.

    Raises:
        FactorError: when ``tokens`` are too few, or no prompt has that length with this tokenizer.
    """
    key, depth = random_key(rng), rng.random()
    text = exact_length(partial(passkey_text, key, depth), encode, tokens, f"{PASSKEY} prompt")
    return Question(text, key, depth)


def is_found(reply: str, key: str) -> bool:
    """Whether the first number of a reply to the prompt is the key."""
    numbers = NUMBER.search(reply)
    return numbers is not None and numbers.group() == key
