"""Builds the prompts of conversations: each is the previous one, a prepared reply and the user's next message."""

import json
from dataclasses import dataclass, field

import numpy as np

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.tokenizers import Tokenizer
from ropeswitch.loadtests.client.pieces import Piece
from ropeswitch.loadtests.client.prompts import Composer
from ropeswitch.loadtests.client.texts import Text


class Joints:
    """Counts the tokens between one message's question and the next one's filler: a reply and the chat template's."""

    def __init__(self, text: Text, tokenizer: Tokenizer, composer: Composer) -> None:
        self.text = text
        self._tokenizer = tokenizer
        self._composer = composer
        self._tokens: dict[str, int] = {}

    def tokens(self, key: str) -> int:
        """Return the number of these tokens in a conversation about ``key``.

        Raises:
            UsageError: if the chat template or the tokenizer changes a message's tokens once others follow it.
        """
        if key not in self._tokens:
            self._tokens[key] = self._count(key)
        return self._tokens[key]

    def _count(self, key: str) -> int:
        pieces = self._composer.pieces
        words = pieces.filler[0]
        ids = self._tokenizer.chat(
            [
                {"role": "user", "content": pieces.opening.text + words.text + pieces.question.text},
                {"role": "assistant", "content": self.text.reply.replace("{key}", key)},
                {"role": "user", "content": self.text.next + words.text + pieces.question.text},
            ]
        )
        before, after = [*pieces.opening.ids, *words.ids], [*words.ids, *pieces.question.ids]
        if ids[: len(before)] != before or ids[-len(after) :] != after:
            raise UsageError(
                "mix: turns: the chat template changes a message once others follow it, so lengths would not be exact: "
                "use a workload without turns"
            )
        return len(ids) - len(before) - len(after)


@dataclass
class Conversation:
    """One conversation as it grows.

    Attributes:
        composer: Assembles the text.
        joints: Token counts between messages for this text and chat template.
        first: The first message.
        key: The pass key in it.
        random: Random generator for the filler.
    """

    composer: Composer
    joints: Joints
    first: list[Piece]
    key: str
    random: np.random.Generator
    _messages: list[dict[str, str]] = field(default_factory=list)
    _tokens: int = 0

    def grow(self, tokens: int) -> None:
        """Add a reply and a message, so that the prompt has ``tokens`` tokens."""
        if not self._messages:
            self._messages = [{"role": "user", "content": self.composer.text(self.first)}]
            self._tokens = sum(len(piece.ids) for piece in self.first)
        room = tokens - self._tokens - self.joints.tokens(self.key)
        if room < 0:
            raise UsageError(
                f"mix: turns.grow: {tokens - self._tokens} tokens cannot hold a reply and a question, which need "
                f"{self.joints.tokens(self.key)} with this text"
            )
        pieces = self.composer.pieces
        content = (
            self.joints.text.next + self.composer.text(self.composer.filler(room, self.random)) + pieces.question.text
        )
        self._messages += [
            {"role": "assistant", "content": self.joints.text.reply.replace("{key}", self.key)},
            {"role": "user", "content": content},
        ]
        self._tokens = tokens

    def body(self) -> bytes:
        """Return the field of a request's body with the conversation."""
        return b'"messages":' + json.dumps(self._messages).encode()
