"""Texts of any length that something is hidden in: documents one after the other, or a few sentences again and again."""

import random
from collections.abc import Sequence
from typing import Protocol

from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.exact_length import cut_at_word
from ropeswitch.factors.evaluate.passkey import repeated
from ropeswitch.factors.factor_set import FactorError

# Characters before a place in which the end of a sentence is looked for.
SENTENCE = 400


class Haystack(Protocol):
    """A text that goes on."""

    def take(self, characters: int) -> str:
        """Its first characters, exactly so many."""


class Repeated:
    """The pass-key prompt's filler."""

    def take(self, characters: int) -> str:
        return repeated(characters)


class Documents:
    """Documents in the order that ``rng`` draws, each used once."""

    def __init__(self, corpus: Corpus, rng: random.Random) -> None:
        self._source = corpus.source
        self._left = corpus.shuffled(rng)
        self._text = ""

    def take(self, characters: int) -> str:
        """See :class:`Haystack`.

        Raises:
            FactorError: when all documents together are shorter.
        """
        while len(self._text) < characters:
            if not self._left:
                raise FactorError(
                    f"--text {self._source!r}: the texts are too short: a haystack of {characters} characters is needed, "
                    f"and all of them have {len(self._text)}"
                )
            self._text += " ".join(self._left.pop().text.split()) + "\n"
        return self._text[:characters]


def hide(haystack: Haystack, needles: Sequence[tuple[float, str]], characters: int, extra: int = 0) -> str:
    """So many characters of a haystack with needles in it, and ``extra`` characters more at its end.

    Args:
        haystack: The text.
        needles: Each with the share of the characters that stands before it, 0 to 1. It goes to the end of the sentence, or
            of the word, before that place.
        characters: Of the haystack.
        extra: Added without moving any needle.
    """
    text = haystack.take(characters + extra)
    parts, start = [], 0
    for depth, needle in sorted(needles, key=lambda each: each[0]):
        end = max(start, _place(text[:characters], round(depth * characters)))
        parts += [text[start:end].strip(), needle]
        start = end
    return " ".join(part for part in (*parts, text[start:].lstrip()) if part)


def _place(text: str, most: int) -> int:
    if most >= len(text):
        return len(text)
    end = text.rfind(". ", max(0, most - SENTENCE), most + 1)
    return end + 1 if end >= 0 else len(cut_at_word(text, most))
