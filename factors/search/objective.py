"""The objective of a search: the perplexity of rows of tokens under a factor set, computed with transformers."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.target import special_tokens
from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.search.settings import SearchSettings

# Maximum tokens per forward pass, unless a single document is longer.
TOKENS = 16384


@dataclass(frozen=True)
class Objective:
    """Rows of token ids of one length, the number of scored tokens at the end of each, and the origin of each text."""

    rows: tuple[tuple[int, ...], ...]
    judged: int
    names: tuple[str, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens and of the number of scored tokens."""
        return hashlib.sha256(np.asarray([(self.judged, *row) for row in self.rows]).tobytes()).hexdigest()

    def perplexity(self, model: LocalModel, factor_set: FactorSet) -> float:
        """Return ``exp`` of the mean negative log-likelihood of all scored tokens of all rows; inf on overflow."""
        length, together = len(self.rows[0]), max(1, TOKENS // len(self.rows[0]))
        losses = [
            model.losses(torch.tensor(self.rows[start : start + together]), factor_set, first=length - self.judged)
            for start in range(0, len(self.rows), together)
        ]
        mean = float(torch.cat(losses).double().mean())
        # Above 709, exp overflows float64 and math.exp raises.
        return math.exp(mean) if math.isnan(mean) or mean < 709 else math.inf


def make_objective(folder: str | Path, tokenizer: Any, settings: SearchSettings) -> Objective:
    """Read the texts of a folder and make rows of ``settings.length`` tokens.

    A row begins like any text from the tokenizer: with its first special token, if it has one.

    Raises FactorError when the folder cannot be read or too few of its texts are long enough.
    """
    start, _ = special_tokens(lambda text, special: tokenizer.encode(text, add_special_tokens=special))
    needed = settings.length - len(start)
    documents = Corpus.read(folder).documents
    # Texts exceed the model's maximum on purpose; verbose=False silences the tokenizer's warning.
    texts = [(each.name, tokenizer.encode(each.text, add_special_tokens=False, verbose=False)) for each in documents]
    found = [(name, tokens[:needed]) for name, tokens in texts if len(tokens) >= needed]
    if len(found) < settings.documents:
        raise FactorError(
            f"--text {str(folder)!r}: {len(found)} of {len(documents)} documents have the {needed} tokens that length "
            f"{settings.length} needs, but --documents requests {settings.documents}; the longest has "
            f"{max(len(tokens) for _, tokens in texts)}"
        )
    order = np.random.default_rng(settings.seed).permutation(len(found))[: settings.documents]
    chosen = [found[index] for index in sorted(order.tolist())]
    judged = settings.length - 1 if settings.tokens_judged is None else settings.tokens_judged
    return Objective(tuple((*start, *tokens) for _, tokens in chosen), judged, tuple(name for name, _ in chosen))
