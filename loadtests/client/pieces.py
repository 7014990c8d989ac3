"""A text in pieces whose tokens are known, so that a prompt of a million tokens is put together and never tokenized.

The tokens of a prompt are those of its pieces, one after the other, if no tokenizer rule reaches over the ends of pieces.
That is checked with the served tokenizer for every two pieces that can meet, and again by the server, which tells how many
tokens each prompt had.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.texts import Text
from ropeswitch.loadtests.client.tokens import Tokenizer

# Candidates for a piece of one token, which fills a prompt up to its exact length.
PADS = (" so", " and", " the", " a", " .", " !", "\n", ".", "!", "a")
KEYS = 64
Cut = Callable[[str], list[int]]


@dataclass(frozen=True)
class Piece:
    """A part of a prompt.

    Attributes:
        text: It, with the space that sets it off from what is before.
        ids: Its tokens.
    """

    text: str
    ids: tuple[int, ...]

    @cached_property
    def json_ids(self) -> str:
        """The tokens as they stand in a JSON list."""
        return ",".join(map(str, self.ids))


@dataclass(frozen=True)
class Pieces:
    """All that single prompts are made of.

    Attributes:
        opening: What a prompt begins with, and all that the chat template puts before it.
        filler: Sentences.
        pad: One token.
        keys: Statements of pass keys, by key.
        question: The end of a prompt, and what the chat template puts behind it.
    """

    opening: Piece
    filler: tuple[Piece, ...]
    pad: Piece
    keys: dict[str, Piece]
    question: Piece

    @property
    def least(self) -> int:
        """Tokens of the shortest prompt that holds a key."""
        key = max(len(piece.ids) for piece in self.keys.values())
        return len(self.opening.ids) + key + len(self.question.ids)


def cut(text: Text, tokenizer: Tokenizer, chat: bool, keys: Sequence[str]) -> Pieces:
    """Cut a text into pieces with the served tokenizer.

    Args:
        text: The text.
        tokenizer: The served one.
        chat: Whether prompts go through the chat template.
        keys: The pass keys that there may be.

    Raises:
        UsageError: where the tokenizer joins pieces, so that the tokens of a prompt are not those of its pieces.
    """

    def whole(content: str) -> list[int]:
        return tokenizer.chat([{"role": "user", "content": content}]) if chat else tokenizer.text(content)

    sentences = [" " + sentence for sentence in text.filler]
    statements = [" " + text.key.replace("{key}", key) for key in keys]
    question = " " + text.question
    inner = [*sentences, *statements, *PADS]
    prompts = {words: whole(text.opening + words + question) for words in inner}
    # The pieces begin and end unlike each other, so what all prompts share at their ends is not theirs.
    head = _shared(list(prompts.values()))
    tail = _shared([ids[len(head) :][::-1] for ids in prompts.values()])[::-1]

    def piece(words: str) -> Piece:
        return Piece(words, tuple(prompts[words][len(head) : len(prompts[words]) - len(tail)]))

    opening, end = Piece(text.opening, tuple(head)), Piece(question, tuple(tail))
    filler = tuple(map(piece, sentences))
    stated = dict(zip(keys, map(piece, statements), strict=True))
    problem = "no piece has one token alone"
    for pad in map(piece, PADS):
        pieces = Pieces(opening, filler, pad, stated, end)
        if len(pad.ids) == 1:
            joined = _joined(pieces, whole)
            if joined is None:
                return pieces
            problem = f"the tokens change where {joined[1]!r} follows {joined[0]!r}"
    raise UsageError(
        f"the served tokenizer does not cut text {text.about!r} into pieces ({problem}): give another text"
    )


def _shared(lists: Sequence[Sequence[int]]) -> list[int]:
    """The longest beginning that all lists have."""
    shared: list[int] = []
    for column in zip(*lists, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return shared


def _joined(pieces: Pieces, whole: Cut) -> tuple[str, str] | None:
    """Two pieces that can meet in a prompt and whose tokens are others then; None where there are none."""
    key = next(iter(pieces.keys.values()))
    meeting = (*pieces.filler, pieces.pad, key)
    for first in meeting:
        pairs = [part for second in meeting for part in (first, second)]
        parts = (pieces.opening, *pairs, pieces.question)
        ids = whole("".join(part.text for part in parts))
        if ids != [token for part in parts for token in part.ids]:
            return _which(pieces, first, meeting, whole)
    return None


def _which(pieces: Pieces, first: Piece, meeting: Sequence[Piece], whole: Cut) -> tuple[str, str]:
    for second in meeting:
        parts = (pieces.opening, first, second, pieces.question)
        if whole("".join(part.text for part in parts)) != [token for part in parts for token in part.ids]:
            return first.text, second.text
    return first.text, meeting[0].text
