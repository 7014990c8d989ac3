"""Haystacks of any length to hide needles in: concatenated documents, or a few repeated sentences."""

import random
from collections.abc import Sequence
from typing import Protocol

from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.exact_length import cut_at_word
from ropeswitch.factors.evaluate.passkey import repeated
from ropeswitch.factors.factor_set import FactorError

# Characters before a place to search for the end of a sentence.
SENTENCE = 400


class Haystack(Protocol):
    """A text of any length."""

    def take(self, characters: int) -> str:
        """Return exactly the first ``characters`` characters."""


class Repeated:
    """The filler of the pass-key prompt, repeated."""

    def take(self, characters: int) -> str:
        return repeated(characters)


class Documents:
    """Documents in random order, each used once."""

    def __init__(self, corpus: Corpus, rng: random.Random) -> None:
        self._source = corpus.source
        self._left = corpus.shuffled(rng)
        self._text = ""

    def take(self, characters: int) -> str:
        """See :class:`Haystack`.

        Raises:
            FactorError: when all documents together are too short.
        """
        while len(self._text) < characters:
            if not self._left:
                raise FactorError(
                    f"--text {self._source!r}: the texts are too short: the haystack needs {characters} characters, "
                    f"but all texts together have {len(self._text)}"
                )
            self._text += " ".join(self._left.pop().text.split()) + "\n"
        return self._text[:characters]


def hide(haystack: Haystack, needles: Sequence[tuple[float, str]], characters: int, extra: int = 0) -> str:
    """Return the first ``characters`` characters of a haystack with needles in them, and ``extra`` more at the end.

    Args:
        haystack: The text.
        needles: Needles, each with the fraction of characters before it, 0 to 1. A needle goes after the last sentence, or
            else the last word, that ends before that place.
        characters: Characters of the haystack.
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
