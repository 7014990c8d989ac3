"""Assembles prompts of an exact number of tokens with a pass key in them, as JSON for a request's body."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.pieces import Piece, Pieces


@dataclass(frozen=True)
class Composer:
    """Assembles prompts.

    Attributes:
        pieces: The pieces to assemble them from.
        chat: Whether prompts are chat messages.
    """

    pieces: Pieces
    chat: bool

    def filler(self, tokens: int, random: np.random.Generator) -> list[Piece]:
        """Draw sentences, padded to exactly ``tokens`` tokens."""
        widths = np.array([len(piece.ids) for piece in self.pieces.filler])
        chosen: list[Piece] = []
        while tokens >= widths.max():
            drawn = random.integers(0, len(widths), size=int(tokens // widths.mean()) + 8)
            fits = int(np.searchsorted(np.cumsum(widths[drawn]), tokens, side="right"))
            chosen += [self.pieces.filler[i] for i in drawn[:fits]]
            tokens -= int(widths[drawn[:fits]].sum())
            if fits < len(drawn):
                break
        return [*chosen, *[self.pieces.pad] * tokens]

    def single(self, tokens: int, key: str, random: np.random.Generator, shared: Sequence[Piece] = ()) -> list[Piece]:
        """Assemble a prompt of exactly ``tokens`` tokens with the key at a random position.

        Args:
            tokens: Tokens of the whole prompt, including the chat template's.
            key: One of the pieces' keys.
            random: Random generator for the key's position and the filler.
            shared: Pieces that follow the opening.

        Raises:
            UsageError: if there is no room for the key and the question.
        """
        pieces = self.pieces
        statement = pieces.keys[key]
        room = tokens - sum(len(piece.ids) for piece in (pieces.opening, *shared, statement, pieces.question))
        if room < 0:
            raise UsageError(f"a prompt of {tokens} tokens is too short: it needs {tokens - room} with this text")
        before = int(room * random.random())
        filler = self.filler(before, random)
        return [
            pieces.opening,
            *shared,
            *filler,
            statement,
            *self.filler(room - before, random),
            pieces.question,
        ]

    def text(self, parts: Sequence[Piece]) -> str:
        """Return the prompt's text, without the chat template's."""
        return "".join(part.text for part in parts)

    def body(self, parts: Sequence[Piece], form: Literal["text", "ids"]) -> bytes:
        """Return the prompt field of a request's body, as JSON."""
        if form == "ids":
            return b'"prompt":[' + ",".join(part.json_ids for part in parts).encode() + b"]"
        text = self.text(parts)
        if self.chat:
            return b'"messages":' + json.dumps([{"role": "user", "content": text}]).encode()
        return b'"prompt":' + json.dumps(text).encode()
