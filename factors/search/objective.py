"""The objective of a search: rows of tokens, and how many of each row's last tokens are scored."""

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.passkey import OPENING, QUESTION, random_key, statement
from ropeswitch.factors.evaluate.target import special_tokens
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.search.settings import SearchSettings


@dataclass(frozen=True)
class Objective:
    """Rows of one length, and the part of each that is scored.

    Attributes:
        rows: Token ids; all rows have the same length.
        judged: Number of scored tokens at the end of each row.
        names: Origin of each row's text.
    """

    rows: tuple[tuple[int, ...], ...]
    judged: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def length(self) -> int:
        return len(self.rows[0])

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens and of the numbers of scored tokens."""
        found = hashlib.sha256()
        for row, count in zip(self.rows, self.judged, strict=True):
            found.update(np.asarray([count, *row], dtype=np.int64).tobytes())
        return found.hexdigest()

    def perplexity(self, losses: Sequence[Iterable[float]]) -> float:
        """Return ``exp`` of the mean negative log-likelihood of all scored tokens of all rows; inf on overflow.

        Args:
            losses: Losses in nats of each row's scored tokens.
        """
        every = np.concatenate([np.fromiter(row, dtype=np.float64) for row in losses])
        mean = float(every.mean())
        # Above 709, exp overflows float64 and math.exp raises.
        return math.exp(mean) if math.isnan(mean) or mean < 709 else math.inf


def make_objective(folder: str | Path, tokenizer: Any, settings: SearchSettings) -> Objective:
    """Read the texts of a folder and make rows of ``settings.length`` tokens.

    A row begins like any text from the tokenizer: with its first special token, if it has one.

    Raises:
        FactorError: when the folder cannot be read or too few of its texts are long enough.
    """
    start, _ = special_tokens(lambda text, special: tokenizer.encode(text, add_special_tokens=special))
    if settings.objective == "needle":
        return _needles(folder, tokenizer, settings, start)
    chosen = _choose(folder, settings, settings.length - len(start), lambda text: _tokens(tokenizer, text))
    rows = tuple((*start, *tokens) for _, tokens in chosen)
    judged = settings.length - 1 if settings.tokens_judged is None else settings.tokens_judged
    return Objective(rows, (judged,) * len(rows), tuple(name for name, _ in chosen))


def _needles(folder: str | Path, tokenizer: Any, settings: SearchSettings, start: tuple[int, ...]) -> Objective:
    """Make rows that state a pass key, at depths spread over the row, and ask for it at the end; only the answer is scored.

    LongRoPE2 (arXiv:2502.20082) scores the answers to such needles in books. The text around the key is that of LongRoPE's
    pass-key test.
    """
    rng = random.Random(f"needles-{settings.seed}")
    opening, question = _tokens(tokenizer, OPENING + "\n"), _tokens(tokenizer, "\n" + QUESTION)
    needles: list[tuple[list[int], list[int]]] = []
    for _ in range(settings.documents):
        key = random_key(rng)
        needles.append((_tokens(tokenizer, f"\n{statement(key)}\n"), _tokens(tokenizer, " " + key)))
    rooms = [settings.length - sum(map(len, (start, opening, told, question, answer))) for told, answer in needles]
    if min(rooms) < 1:
        raise FactorError(
            f"length: {settings.length} is too short for a pass key; add at least {1 - min(rooms)} tokens"
        )
    chosen = _choose(folder, settings, max(rooms), lambda text: _tokens(tokenizer, text))
    rows: list[tuple[int, ...]] = []
    for number, ((told, answer), room) in enumerate(zip(needles, rooms, strict=True)):
        text = chosen[number][1]
        depth = int((number + rng.random()) / settings.documents * room)
        rows.append((*start, *opening, *text[:depth], *told, *text[depth:room], *question, *answer))
    return Objective(tuple(rows), tuple(len(answer) for _, answer in needles), tuple(name for name, _ in chosen))


def _choose(
    folder: str | Path, settings: SearchSettings, needed: int, tokens_of: Callable[[str], list[int]]
) -> list[tuple[str, list[int]]]:
    """Draw documents that have at least ``needed`` tokens; return their names and first ``needed`` tokens.

    Raises:
        FactorError: stating how many are long enough, how long the longest is and what is needed.
    """
    long_enough: list[tuple[str, list[int]]] = []
    longest, documents = 0, Corpus.read(folder).documents
    for document in documents:
        tokens = tokens_of(document.text)
        longest = max(longest, len(tokens))
        if len(tokens) >= needed:
            long_enough.append((document.name, tokens[:needed]))
    if len(long_enough) < settings.documents:
        raise FactorError(
            f"--text {str(folder)!r}: {len(long_enough)} of {len(documents)} documents have the {needed} tokens that "
            f"length {settings.length} needs, but --documents requests {settings.documents}; the longest has {longest}"
        )
    order = np.random.default_rng(settings.seed).permutation(len(long_enough))[: settings.documents]
    return [long_enough[index] for index in sorted(order.tolist())]


def _tokens(tokenizer: Any, text: str) -> list[int]:
    # Texts exceed the model's maximum on purpose; verbose=False silences the tokenizer's warning.
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))
