"""Training rows: chronicles, and pass keys in the paper's prompt or in a chronicle, each of an exact number of tokens."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from transformers import PreTrainedTokenizerBase

from ropeswitch.factors.evaluate.passkey import FILLER, OPENING, QUESTION, random_key, statement
from ropeswitch.models.miniature.chronicle import Chronicle, chronicle

CHAT_QUESTION = "What is the pass key?"
CHAT_REPLY = "The pass key is"
LINE_SHARE = 0.7
"""Share of pass-key rows whose parts stand on lines of their own, as in the paper; the others have spaces between."""
CHARACTERS_A_TOKEN = 7
"""More than any text here has, so that a text cut by characters is long enough in tokens."""
FILLER_WEIGHT, TEXT_WEIGHT, KEY_WEIGHT = 0.02, 1.0, 4.0


@dataclass(frozen=True)
class Mix:
    """Shares of the kinds of rows: pass keys; of those in chronicles, and in chats.

    Attributes:
        fresh: What the weight of a token is multiplied by where it did not follow the same two tokens before.
        keys: Share of rows that hide a pass key.
        in_chronicle: Of those, share in chronicles instead of the paper's filler.
        chat: Of those, share in the chat template.
    """

    fresh: float = 1.0
    keys: float = 0.4
    in_chronicle: float = 0.4
    chat: float = 0.3


@dataclass(frozen=True)
class Rows:
    """ids int64 and weights float32, both ``[rows, n]``; the weight is that of predicting the token."""

    ids: torch.Tensor
    weights: torch.Tensor


class RowWriter:
    """Writes rows of one random generator."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rng: random.Random, mix: Mix) -> None:
        self.tokenizer, self.rng, self.mix = tokenizer, rng, mix

    def rows(self, count: int, tokens: int) -> Rows:
        """``count`` rows of ``tokens`` tokens, each with its bos token first."""
        rows = [self._row(tokens) for _ in range(count)]
        return _stacked([(ids, _weighed(ids, weights, self.mix.fresh)) for ids, weights in rows])

    def packed(self, count: int, documents: Sequence[int]) -> Rows:
        """``count`` rows of one bos token and then documents of the given lengths, whose own bos token it replaces."""
        made = []
        for _ in range(count):
            parts = [self._row(length + 1) for length in documents]
            ids = [self.tokenizer.bos_token_id, *chain.from_iterable(part[0][1:] for part in parts)]
            # What begins a document cannot be told from the end of the one before.
            weights = [0.0, *chain.from_iterable([0.0, *part[1][2:]] for part in parts)]
            made.append((ids, weights))
        return _stacked(made)

    def _row(self, tokens: int) -> tuple[list[int], list[float]]:
        if self.rng.random() >= self.mix.keys:
            text = chronicle(self.rng, tokens * CHARACTERS_A_TOKEN)
            return [self.tokenizer.bos_token_id, *self._encode(text)[: tokens - 1]], [TEXT_WEIGHT] * tokens
        return self._key_row(tokens)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _key_row(self, tokens: int) -> tuple[list[int], list[float]]:
        rng = self.rng
        key = random_key(rng)
        in_chronicle, chat = rng.random() < self.mix.in_chronicle, rng.random() < self.mix.chat
        gap = "\n" if rng.random() < LINE_SHARE else " "
        bos, eos = str(self.tokenizer.bos_token), str(self.tokenizer.eos_token)
        head = self._encode(f"{bos}{'<|user|>' + chr(10) if chat else ''}{OPENING}{gap}")
        told = self._encode(f"{gap}{statement(key)}{gap}")
        question = self._encode(gap + (f"{CHAT_QUESTION}{eos}\n<|assistant|>\n" if chat else QUESTION))
        reply, number, end = self._encode(CHAT_REPLY) if chat else [], self._encode(f" {key}"), self._encode(f".{eos}")
        room = tokens - sum(map(len, (head, told, question, reply, number, end)))
        before = rng.randint(0, max(0, room))
        sentence: Callable[[], str] = Chronicle(rng).sentence if in_chronicle else (lambda: FILLER)
        weight = TEXT_WEIGHT if in_chronicle else FILLER_WEIGHT
        parts = [
            (head, 0.0),
            (self._filler(sentence, before), weight),
            (told, weight),
            (self._filler(sentence, room - before), weight),
            (question, weight),
            (reply, TEXT_WEIGHT),
            (number, KEY_WEIGHT),
            (end, TEXT_WEIGHT),
        ]
        ids = [token for part, _ in parts for token in part]
        weights = [each for part, each in parts for _ in part]
        return ids[:tokens], weights[:tokens]

    def _filler(self, sentence: Callable[[], str], tokens: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < tokens:
            ids += self._encode("".join(sentence() for _ in range((tokens - len(ids)) // 10 + 1)).lstrip())
        return ids[: max(0, tokens)]


def _stacked(rows: Sequence[tuple[list[int], list[float]]]) -> Rows:
    ids, weights = zip(*rows, strict=True)
    return Rows(torch.tensor(ids), torch.tensor(weights))


def _weighed(ids: list[int], weights: list[float], fresh: float) -> list[float]:
    """The weights, times ``fresh`` where a token did not follow the same two tokens before."""
    if fresh == 1.0:
        return weights
    seen: set[tuple[int, int, int]] = set()
    found = list(weights)
    for place in range(2, len(ids)):
        three = (ids[place - 2], ids[place - 1], ids[place])
        if three not in seen:
            found[place] *= fresh
            seen.add(three)
    return found
