"""Builds prompts of an exact number of tokens, with a pass key, on disk: memory-mapped while a run sends them."""

import json
import mmap
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.tokenizers import Tokenizer
from ropeswitch.loadtests.client.pieces import Piece, Pieces, Text
from ropeswitch.loadtests.client.plan import TRACE_BLOCK, Planned


@dataclass(frozen=True)
class Composer:
    """Assembles prompts, as chat messages or as texts."""

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
        """Assemble a prompt of exactly ``tokens`` tokens, the chat template's included, with the key at a random position.

        Raises UsageError if there is no room for the key and the question.
        """
        pieces = self.pieces
        statement = pieces.keys[key]
        room = tokens - sum(len(piece.ids) for piece in (pieces.opening, *shared, statement, pieces.question))
        if room < 0:
            raise UsageError(f"a prompt of {tokens} tokens is too short: it needs {tokens - room} with this text")
        before = int(room * random.random())
        filler = self.filler(before, random)
        after = self.filler(room - before, random)
        return [pieces.opening, *shared, *filler, statement, *after, pieces.question]

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


class Joints:
    """Counts the tokens between one message's question and the next one's filler: a reply and the chat template's."""

    def __init__(self, text: Text, tokenizer: Tokenizer, composer: Composer) -> None:
        self.text = text
        self._tokenizer = tokenizer
        self._composer = composer
        self._tokens: dict[str, int] = {}

    def tokens(self, key: str) -> int:
        """Return the number of these tokens in a conversation about ``key``.

        Raises UsageError if the chat template or the tokenizer changes a message's tokens once others follow it.
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
    """One conversation as it grows from its ``first`` message, which has the key."""

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


# Upper estimate of the bytes on disk per token, for texts and for lists of token ids.
TOKEN_BYTES = 8


@dataclass(frozen=True)
class Prompts:
    """A plan and its prompts, on disk while an object refers to them: each one's offset and size, by index."""

    planned: Sequence[Planned]
    places: Sequence[tuple[int, int]]
    _bytes: mmap.mmap

    def prompt(self, index: int) -> memoryview:
        """Return the field of the request's body with the prompt."""
        offset, size = self.places[index]
        return memoryview(self._bytes)[offset : offset + size]

    def conversations(self) -> list[list[Planned]]:
        """Group the requests by conversation."""
        return [list(turns) for _, turns in groupby(self.planned, key=lambda each: each.conversation)]


def build(folder: Path, planned: Sequence[Planned], composer: Composer, joints: Joints, seed: int) -> Prompts:
    """Build the prompts of a plan in a file of ``folder``, which has no name and disappears with them.

    Raises UsageError if the disk has too little space.
    """
    needed = TOKEN_BYTES * sum(each.prompt_tokens for each in planned)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"--out {folder}: the prompts take up to {needed >> 20} MiB, but only {free >> 20} MiB are free: "
            "use another folder"
        )
    places: list[tuple[int, int]] = []
    offset = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        for prompt in _prompts(planned, composer, joints, seed):
            file.write(prompt)
            places.append((offset, len(prompt)))
            offset += len(prompt)
        file.flush()
        return Prompts(planned, places, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _prompts(planned: Sequence[Planned], composer: Composer, joints: Joints, seed: int) -> Iterator[bytes]:
    keys = list(composer.pieces.keys)
    conversation: Conversation | None = None
    for each in planned:
        random = np.random.default_rng([seed, each.conversation, 1])
        if each.turn == 0:
            parts = composer.single(each.prompt_tokens, keys[each.key], random, _shared(each, composer, seed))
            conversation = Conversation(composer, joints, parts, keys[each.key], random)
            yield composer.body(parts, each.form)
        else:
            assert conversation is not None, "a conversation's first turn comes first"
            conversation.grow(each.prompt_tokens)
            yield conversation.body()


def _shared(each: Planned, composer: Composer, seed: int) -> list[Piece]:
    """Return the pieces that the prompt shares with others: its prefix, or its trace blocks."""
    if each.prefix is not None:
        return composer.filler(each.prefix_tokens, np.random.default_rng([seed, each.prefix, 2]))
    room = (each.prompt_tokens - composer.pieces.least) // TRACE_BLOCK
    blocks = each.blocks[: max(0, room)]
    return [
        piece for block in blocks for piece in composer.filler(TRACE_BLOCK, np.random.default_rng([seed, block, 3]))
    ]
