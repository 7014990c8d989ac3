"""Texts that a tokenizer cuts into exactly as many tokens as were asked for."""

import math
from collections.abc import Callable

from ropeswitch.factors.factor_set import FactorError

# Units of filler whose tokens are counted for a first estimate.
SAMPLE = 64
# Characters that are added one by one at the end of the filler; a token of English is hardly ever longer than a few.
MOST_EXTRA = 200
# Tokens that a word has more where it is cut: with them, the text may be too long until the word is whole.
CUT_WORD = 4


def exact_length(make: Callable[[int, int], str], encode: Callable[[str], list[int]], tokens: int, what: str) -> str:
    """A text of exactly ``tokens`` tokens.

    Args:
        make: Writes the text with so many units of filler (characters, words, ...) and so many characters more at the
            filler's end, which move nothing else.
        encode: Token ids of a text.
        tokens: How many are asked for.
        what: The kind of text, for the error.

    Raises:
        FactorError: when the text without filler is longer, or no amount of filler gives that length.
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
        # A little less filler, which may have more tokens where a word is cut.
        filler = max(0, filler - max(1, math.ceil((found - tokens) * rate)))
        found = count(filler)
    raise FactorError(f"{what}: no text of exactly {tokens} tokens was found with this tokenizer")


def cut_at_word(text: str, characters: int) -> str:
    """The first whole words of ``text`` that fit ``characters`` characters, without the space after them."""
    if characters >= len(text) or text[characters].isspace():
        return text[:characters].rstrip()
    return text[: max(0, text.rfind(" ", 0, characters + 1))].rstrip()
