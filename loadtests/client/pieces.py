"""Texts that hide a pass key, split into pieces with known tokens, so that a prompt of a million tokens needs no tokenizer.

A prompt's tokens are those of its pieces in sequence if no tokenizer rule spans two pieces. The served tokenizer is used to
check that for every pair of pieces that can meet, and the prompt tokens that the server counts check it again.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field, model_validator

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.tokenizers import Tokenizer
from ropeswitch.loadtests.client.lengths import Strict
from ropeswitch.loadtests.client.workload import find, read_yaml, validated

Words = Annotated[str, Field(min_length=1, max_length=2000)]


class Text(Strict):
    """A text file; docs/loadtests.md describes its keys. Answers of fewer than ``answer`` tokens are not judged."""

    about: Words
    opening: Words
    filler: Annotated[tuple[Words, ...], Field(min_length=1, max_length=64)]
    key: Words
    question: Words
    next: Words
    reply: Words
    digits: Annotated[int, Field(ge=4, le=12)]
    answer: Annotated[int, Field(ge=1, le=1000)]

    @model_validator(mode="after")
    def _keys(self) -> "Text":
        if "{key}" not in self.key:
            raise ValueError("key: must contain {key}, where the pass key goes")
        if any(re.search(rf"[0-9]{{{self.digits}}}", sentence) for sentence in self.filler):
            raise ValueError(f"filler: must not contain numbers of {self.digits} digits, which look like a pass key")
        return self

    def has_key(self, answer: str, key: str, to_its_end: bool = True) -> bool:
        """Return whether an answer, or its first number alone, is the key and no other number with as many digits."""
        found = re.findall(rf"(?<![0-9])[0-9]{{{self.digits}}}(?![0-9])", answer)
        return set(found if to_its_end else found[:1]) == {key}


def load(name: str) -> Text:
    """Load a shipped text by its name, or a text file."""
    path = find("text", name)
    return validated(Text, "text", read_yaml(path), str(path))


# Candidates for the one-token piece that pads a prompt to its exact length.
PADS = (" so", " and", " the", " a", " .", " !", "\n", ".", "!", "a")
KEYS = 64
Cut = Callable[[str], list[int]]


@dataclass(frozen=True)
class Piece:
    """A part of a prompt, with the space that separates it from the previous piece, and its token ids."""

    text: str
    ids: tuple[int, ...]

    @cached_property
    def json_ids(self) -> str:
        """The token ids, separated as in a JSON list."""
        return ",".join(map(str, self.ids))


@dataclass(frozen=True)
class Pieces:
    """The pieces of single prompts.

    Attributes:
        opening: Start of a prompt, including what the chat template puts before it.
        filler: Sentences.
        pad: A piece of one token.
        keys: Sentences that state a pass key, by key.
        question: End of a prompt, including what the chat template puts after it.
    """

    opening: Piece
    filler: tuple[Piece, ...]
    pad: Piece
    keys: dict[str, Piece]
    question: Piece

    @property
    def least(self) -> int:
        """Tokens of the shortest prompt with a pass key."""
        key = max(len(piece.ids) for piece in self.keys.values())
        return len(self.opening.ids) + key + len(self.question.ids)


def cut(text: Text, tokenizer: Tokenizer, chat: bool, keys: Sequence[str]) -> Pieces:
    """Split a text into pieces with the served tokenizer, and its chat template for ``chat``.

    Raises UsageError if tokens span pieces, so that a prompt's tokens would not be those of its pieces.
    """

    def whole(content: str) -> list[int]:
        return tokenizer.chat([{"role": "user", "content": content}]) if chat else tokenizer.text(content)

    sentences = [" " + sentence for sentence in text.filler]
    statements = [" " + text.key.replace("{key}", key) for key in keys]
    question = " " + text.question
    inner = [*sentences, *statements, *PADS]
    prompts = {words: whole(text.opening + words + question) for words in inner}
    # The inner pieces begin and end differently, so tokens shared by the ends of all prompts belong to the outer pieces.
    head = _shared(list(prompts.values()))
    tail = _shared([ids[len(head) :][::-1] for ids in prompts.values()])[::-1]

    def piece(words: str) -> Piece:
        return Piece(words, tuple(prompts[words][len(head) : len(prompts[words]) - len(tail)]))

    opening, end = Piece(text.opening, tuple(head)), Piece(question, tuple(tail))
    filler = tuple(map(piece, sentences))
    stated = dict(zip(keys, map(piece, statements), strict=True))
    problem = "no candidate for padding is exactly one token"
    for pad in map(piece, PADS):
        pieces = Pieces(opening, filler, pad, stated, end)
        if len(pad.ids) == 1:
            joined = _joined(pieces, whole)
            if joined is None:
                return pieces
            problem = f"the tokens change next to {joined!r}"
    raise UsageError(
        f"the served tokenizer does not split text {text.about!r} into pieces ({problem}): use another --text"
    )


def _shared(lists: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest common prefix."""
    shared: list[int] = []
    for column in zip(*lists, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return shared


def _joined(pieces: Pieces, whole: Cut) -> str | None:
    """Return a piece whose tokens change next to another one that it can meet in a prompt; None if there is none."""
    meeting = (*pieces.filler, pieces.pad, next(iter(pieces.keys.values())))
    for first in meeting:
        pairs = [part for second in meeting for part in (first, second)]
        parts = (pieces.opening, *pairs, pieces.question)
        if whole("".join(part.text for part in parts)) != [token for part in parts for token in part.ids]:
            return first.text
    return None
