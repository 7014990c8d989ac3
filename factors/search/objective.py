"""What is judged: rows of tokens, and how many of the last of each count."""

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
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.search.settings import SearchSettings


@dataclass(frozen=True)
class Objective:
    """Rows of one length, and what of them counts.

    Attributes:
        rows: Token ids, all rows equally long.
        judged: How many of each row's last tokens count.
        names: Where each row's text is from.
    """

    rows: tuple[tuple[int, ...], ...]
    judged: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def length(self) -> int:
        return len(self.rows[0])

    @property
    def digest(self) -> str:
        """A fingerprint of all tokens and of what counts."""
        found = hashlib.sha256()
        for row, count in zip(self.rows, self.judged, strict=True):
            found.update(np.asarray([count, *row], dtype=np.int64).tobytes())
        return found.hexdigest()

    def perplexity(self, losses: Sequence[Iterable[float]]) -> float:
        """``exp`` of the mean negative log-likelihood of all judged tokens of all rows; inf where that is too large.

        Args:
            losses: In nats, of each row's judged tokens.
        """
        every = np.concatenate([np.fromiter(row, dtype=np.float64) for row in losses])
        mean = float(every.mean())
        # Beyond it a float64 is infinite, and math.exp raises.
        return math.exp(mean) if math.isnan(mean) or mean < 709 else math.inf


def make_objective(folder: str | Path, tokenizer: Any, settings: SearchSettings) -> Objective:
    """Read the texts of a folder and make rows of ``settings.length`` tokens of them.

    A row begins as the tokenizer begins a text (with its first special token, where it has one).

    Raises:
        FactorError: when the folder cannot be read or too few of its texts are long enough.
    """
    start = _opening(tokenizer)
    if settings.objective == "needle":
        return _needles(folder, tokenizer, settings, start)
    chosen = _choose(folder, settings, settings.length - len(start), lambda text: _tokens(tokenizer, text))
    rows = tuple((*start, *tokens) for _, tokens in chosen)
    judged = settings.length - 1 if settings.tokens_judged is None else settings.tokens_judged
    return Objective(rows, (judged,) * len(rows), tuple(name for name, _ in chosen))


def _needles(folder: str | Path, tokenizer: Any, settings: SearchSettings, start: list[int]) -> Objective:
    """Rows in which a pass key is told, at depths spread over the row, and asked for at the end; the answer counts.

    LongRoPE2 (arXiv:2502.20082) judges the answers to such needles in books; the texts around the key are those of
    LongRoPE's own pass-key test.
    """
    rng = random.Random(f"needles-{settings.seed}")
    opening, question = _tokens(tokenizer, OPENING + "\n"), _tokens(tokenizer, "\n" + QUESTION)
    needles: list[tuple[list[int], list[int]]] = []
    for _ in range(settings.documents):
        key = random_key(rng)
        needles.append((_tokens(tokenizer, f"\n{statement(key)}\n"), _tokens(tokenizer, " " + key)))
    rooms = [settings.length - sum(map(len, (start, opening, told, question, answer))) for told, answer in needles]
    if min(rooms) < 1:
        raise FactorError(f"length: {settings.length} is too short for a pass key, {1 - min(rooms)} tokens are missing")
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
    """The first so many tokens of documents that the seed draws among those that have as many, with their names.

    Raises:
        FactorError: saying how many are long enough, how long the longest is and what is needed.
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
            f"length {settings.length} needs, and {settings.documents} are to be judged; the longest has {longest}"
        )
    order = np.random.default_rng(settings.seed).permutation(len(long_enough))[: settings.documents]
    return [long_enough[index] for index in sorted(order.tolist())]


def _tokens(tokenizer: Any, text: str) -> list[int]:
    # Longer than the model was made for is what a search is about; without this the tokenizer would warn of it.
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def _opening(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before a text: usually its first special token, or nothing."""
    plain, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    return list(whole[: next(n for n in range(len(whole)) if whole[n : n + len(plain)] == plain)])
