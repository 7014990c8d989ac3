"""Makes texts of an exact number of tokens."""

import math
from collections.abc import Callable

from ropeswitch.factors.factor_set import FactorError

# Units of filler to tokenize for a first estimate.
SAMPLE = 64
# Maximum characters to add one by one at the filler's end; English tokens are rarely longer than a few characters.
MOST_EXTRA = 200
# Extra tokens of a cut word: the text may exceed the target by these until the word is complete.
CUT_WORD = 4


def exact_length(make: Callable[[int, int], str], encode: Callable[[str], list[int]], tokens: int, what: str) -> str:
    """Return a text of exactly ``tokens`` tokens.

    Args:
        make: Returns the text with a number of filler units (characters, words, ...) and a number of extra characters at
            the filler's end, which move nothing else.
        encode: Returns the token ids of a text.
        tokens: Number of tokens.
        what: Kind of text, for the error.

    Raises:
        FactorError: when the text without filler is already longer, or no amount of filler gives that length.
    """

    def count(filler: int, extra: int = 0) -> int:
        return len(encode(make(filler, extra)))

    least = count(0)
    if least > tokens:
        raise FactorError(f"{what}: {tokens} tokens are too few; it needs at least {least} with this tokenizer")
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
    raise FactorError(f"{what}: found no text of exactly {tokens} tokens with this tokenizer")


def cut_at_word(text: str, characters: int) -> str:
    """Return the leading whole words of ``text`` that fit ``characters`` characters, without trailing whitespace."""
    if characters >= len(text) or text[characters].isspace():
        return text[:characters].rstrip()
    return text[: max(0, text.rfind(" ", 0, characters + 1))].rstrip()
