"""The pass-key prompt of the LongRoPE paper (arXiv:2402.13753, appendix), which is that of Landmark Attention
(Mohtashami and Jaggi, arXiv:2305.16300): a number stated twice somewhere in a repetitive text.
"""

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ropeswitch.factors.factor_set import FactorError

PASSKEY = "passkey"
OPENING = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
QUESTION = "What is the pass key? The pass key is"
REPLY_TOKENS = 10
"""Tokens to generate per reply, as in the LongRoPE repository's evaluation."""
NUMBER = re.compile(r"\d+")
# Characters of filler to tokenize for a first estimate.
SAMPLE = 64
# Maximum characters to add one by one at the filler's end; English tokens are rarely longer than a few characters.
MOST_EXTRA = 200
# Extra tokens of a cut word: the text may exceed the target by these until the word is complete.
CUT_WORD = 4


@dataclass(frozen=True)
class Question:
    """One prompt, the number to find, and the share of the filler before the number's line, 0 to 1."""

    text: str
    key: str
    depth: float


def statement(key: str) -> str:
    """Return the line to find."""
    return f"The pass key is {key}. Remember it. {key} is the pass key."


def passkey_text(key: str, depth: float, characters: int, extra: int = 0) -> str:
    """Return the whole prompt with ``characters`` characters of filler, a share ``depth`` (0 to 1) before the key's line.

    Parts are separated by line breaks, as in the LongRoPE repository (evaluation/passkey.py). Filler before the key ends
    with a whole word. Filler after it, which gets the ``extra`` characters, may end inside a word.
    """
    filler = FILLER * (characters // len(FILLER) + 2 + extra // len(FILLER))
    cut = round(depth * characters)
    before = filler[:cut] if filler[cut].isspace() else filler[: max(0, filler.rfind(" ", 0, cut + 1))]
    before = before.rstrip()
    after = filler[: characters - len(before) + extra]
    return "\n".join(part for part in (OPENING, before, statement(key), after, QUESTION) if part)


def ask(encode: Callable[[str], list[int]], tokens: int, rng: random.Random) -> Question:
    """Return a question of exactly ``tokens`` tokens, with a random key at a random depth; FactorError if none has them."""
    key, depth = str(rng.randrange(10_000, 100_000)), rng.random()
    return Question(_exact_length(partial(passkey_text, key, depth), encode, tokens), key, depth)


def is_found(reply: str, key: str) -> bool:
    """Whether the first number of a reply to the prompt is the key."""
    numbers = NUMBER.search(reply)
    return numbers is not None and numbers.group() == key


def _exact_length(make: Callable[[int, int], str], encode: Callable[[str], list[int]], tokens: int) -> str:
    """Return a text of exactly ``tokens`` tokens.

    ``make`` returns it with a number of characters of filler, and of extra characters at the filler's end, which move
    nothing else; ``encode`` returns a text's token ids.
    """

    def count(filler: int, extra: int = 0) -> int:
        return len(encode(make(filler, extra)))

    least = count(0)
    if least > tokens:
        raise FactorError(f"passkey prompt: {tokens} tokens are too few; it needs at least {least} with this tokenizer")
    rate = SAMPLE / max(1, count(SAMPLE) - least)
    filler, found = 0, least
    tried: set[int] = set()
    while found != tokens and filler not in tried:
        tried.add(filler)
        filler = max(0, filler + round((tokens - found) * rate))
        found = count(filler)
        rate = filler / (found - least) if found > least else rate
    while True:
        for extra in range(1, MOST_EXTRA):
            if found == tokens:
                return make(filler, extra - 1)
            if found > tokens + CUT_WORD:
                break
            found = count(filler, extra)
        if filler == 0:
            break
        # Slightly less filler, which may have more tokens if it cuts a word.
        filler = max(0, filler - max(1, math.ceil((found - tokens) * rate)))
        found = count(filler)
    raise FactorError(f"passkey prompt: found no text of exactly {tokens} tokens with this tokenizer")
