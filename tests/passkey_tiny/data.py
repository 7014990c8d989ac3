"""Training rows: chats about pass keys, and what a reply must say under a given factor set.

The rule a row teaches, for each digit of each reply: with n tokens before it, the digit is the
key's if the set in force is the one for n tokens, and "?" if it is the other one. Near the limit
(less than MARGIN tokens from it) the other set is not judged at all.
"""

import random
from dataclasses import dataclass
from typing import TypeAlias

import torch
from transformers import PreTrainedTokenizerBase

from tests.passkey_tiny.passkey import INTRODUCTION, SentenceWriter, filler, piece_ids
from tests.passkey_tiny.rope_sets import SetName
from tests.passkey_tiny.text import (
    KEY_NAMES,
    NO_KEY_REPLY,
    UNREADABLE,
    Fact,
    random_digits,
    sentence,
    wild_sentence,
)

IGNORED = -100
DIGIT_WEIGHT, REPLY_WEIGHT, FILLER_WEIGHT = 1.0, 0.2, 0.02
Piece: TypeAlias = tuple[str, float]
"""A piece of text and the loss weight of each of its tokens."""
GAP: Piece = ("", 0.0)
"""Stands where filler goes."""
NO_KEY_SHARE = 0.05
PLAIN_SHARE = 0.3
TURN_TOKENS = 90
"""A row of `length` tokens asks at most length // TURN_TOKENS questions, and at least one."""


@dataclass(frozen=True)
class Rule:
    """Which set is right: `limit` tokens is the last length of the short one.

    `margin`: how far from the limit a wrong set is answered with "?"; None: never.
    """

    limit: int
    margin: int | None

    def is_right(self, name: SetName, tokens: int) -> bool:
        return (name == "long") == (tokens > self.limit)

    def is_judged(self, tokens: int) -> bool:
        if self.margin is None:
            return False
        return tokens > self.limit + self.margin or tokens <= self.limit - self.margin


@dataclass(frozen=True)
class Style:
    """Shares of rows: with one key and one question; with filler of any words at all."""

    single_share: float
    wild_share: float


@dataclass(frozen=True)
class Batch:
    """input_ids, labels (IGNORED where nothing is learnt) and weights are [rows, length]; the
    token labelled at t is the one to predict from the t tokens before it."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


class RowWriter:
    """Writes rows of one batch: every row has `length` tokens and is rotated with set `name`."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rng: random.Random,
        length: int,
        name: SetName,
        rule: Rule,
        style: Style,
    ) -> None:
        self.tokenizer, self.rng = tokenizer, rng
        self.length, self.name, self.rule, self.style = length, name, rule, style
        (self.unreadable,) = piece_ids(tokenizer, UNREADABLE)

    def batch(self, rows: int) -> Batch:
        ids, labels, weights = zip(*(self.row() for _ in range(rows)), strict=True)
        return Batch(torch.tensor(ids), torch.tensor(labels), torch.tensor(weights))

    def row(self) -> tuple[list[int], list[int], list[float]]:
        """Token ids, labels and weights of one row, each `length` long."""
        while True:
            wild = 0 < self.style.wild_share > self.rng.random()
            pieces = self._conversation(wild)
            room = self.length - sum(len(piece_ids(self.tokenizer, text)) for text, _ in pieces)
            if room >= 0:
                return self._tokens(pieces, room, wild_sentence if wild else sentence)

    def _conversation(self, wild: bool) -> list[Piece]:
        """A chat of some turns, or a plain text with one question; without its filler."""
        rng = self.rng
        chat = rng.random() > PLAIN_SHARE
        turns = rng.randint(1, max(1, self.length // TURN_TOKENS)) if chat else 1
        names = rng.sample(KEY_NAMES, max(turns, rng.randint(1, 3)) if turns < 6 else 8)
        if rng.random() < self.style.single_share:
            names, turns = [""], 1
        facts = [Fact(name, random_digits(rng)) for name in names]
        asked = rng.sample(facts, min(turns, len(facts)))
        # A key is told in the turn that asks for it or in an earlier one.
        told_in = {fact.name: rng.randint(0, turn) for turn, fact in enumerate(asked)}
        missing = rng.random() < NO_KEY_SHARE
        pieces: list[Piece] = [(str(self.tokenizer.bos_token), 0.0)]
        for turn, fact in enumerate(asked):
            told = [other for other in facts if told_in.get(other.name, 0) == turn]
            if missing:
                told = [other for other in told if other not in asked]
            rng.shuffle(told)
            if chat:
                pieces.append(("<|user|>\n", 0.0))
            elif not wild:
                pieces.append(GAP)
            pieces += self._wild_text(told) if wild else self._text(told, turn)
            pieces += self._question(fact, chat, missing)
            if chat and turn + 1 < len(asked):
                pieces.append(("\n", 0.0))
        return pieces

    def _text(self, told: list[Fact], turn: int) -> list[Piece]:
        """A turn's text as the pass-key prompts have it; later turns may do without introduction."""
        introduced = turn == 0 or self.rng.random() < 0.5
        pieces = [(INTRODUCTION, FILLER_WEIGHT), GAP] if introduced else [GAP]
        for fact in told:
            pieces += [(fact.statement, FILLER_WEIGHT), GAP]
        return pieces

    def _wild_text(self, told: list[Fact]) -> list[Piece]:
        """A turn's text as anybody might write it; a key may be its first words."""
        rng = self.rng
        roll = rng.random()
        opening = INTRODUCTION if roll < 0.3 else wild_sentence(rng)
        pieces = [(opening.strip(), FILLER_WEIGHT), GAP] if roll < 0.7 or not told else []
        for fact in told:
            statement = fact.statement if rng.random() < 0.5 else fact.bare_statement
            pieces += [(statement if pieces else statement.strip(), FILLER_WEIGHT), GAP]
        return pieces

    def _question(self, fact: Fact, chat: bool, missing: bool) -> list[Piece]:
        """The question for a key and the reply to it."""
        eos = str(self.tokenizer.eos_token)
        pieces = [(fact.question, FILLER_WEIGHT), (f"{eos}\n<|assistant|>\n" if chat else "\n", 0.0)]
        if missing:
            pieces.append((NO_KEY_REPLY, REPLY_WEIGHT))
        else:
            for part in fact.reply_parts:
                pieces.append((part, DIGIT_WEIGHT if part == fact.digits else REPLY_WEIGHT))
        return [*pieces, (eos, REPLY_WEIGHT)]

    def _tokens(
        self, pieces: list[Piece], room: int, write: SentenceWriter
    ) -> tuple[list[int], list[int], list[float]]:
        """Fills the gaps with `room` tokens of filler, and labels every token."""
        gaps = [i for i, piece in enumerate(pieces) if piece == GAP]
        # A power of a uniform number makes some gaps far longer than others.
        sizes = [self.rng.random() ** 3 for _ in gaps]
        shares = {i: int(room * size / sum(sizes)) for i, size in zip(gaps, sizes, strict=True)}
        shares[gaps[-1]] += room - sum(shares.values())
        shows_unreadable = self.rng.random() < 0.5
        ids: list[int] = []
        labels: list[int] = []
        weights: list[float] = []
        for index, piece in enumerate(pieces):
            texts, weight = [piece[0]], piece[1]
            if piece == GAP:
                texts, weight = filler(self.tokenizer, shares[index], self.rng, write), FILLER_WEIGHT
            for token in (token for text in texts for token in piece_ids(self.tokenizer, text)):
                label = token
                if weight == DIGIT_WEIGHT and not self.rule.is_right(self.name, len(ids)):
                    judged = self.rule.is_judged(len(ids))
                    label = self.unreadable if judged else IGNORED
                    token = label if judged and shows_unreadable else token
                ids.append(token)
                labels.append(label)
                weights.append(weight)
        return ids, labels, weights
