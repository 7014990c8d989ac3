"""Sliding-window perplexity (Press et al., arXiv:2012.15409, section 2; as LongRoPE, arXiv:2402.13753, section 4.2).

A window of ``length`` tokens moves over a document by ``stride`` tokens. Each window scores only tokens that no earlier
window scored, so all tokens after the first window have a long context. As in the LongRoPE repository
(evaluation/perplexity.py), every window begins with the tokenizer's special tokens, which count towards its length, and
an incomplete last window is skipped. Unlike there, every scored token has the same weight.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.evaluate.corpus import Corpus, Document
from ropeswitch.factors.evaluate.target import Target, Window
from ropeswitch.factors.factor_set import FactorError

PERPLEXITY = "perplexity"
STRIDE = 256
LONG_STRIDE = 256 * 1024
"""Stride for longer lengths, as in the paper's tables for up to 2,048k tokens."""


@dataclass(frozen=True)
class PerplexitySettings:
    """How perplexity is measured: documents per length and seed, and the maximum windows of each document.

    ``stride`` None stands for STRIDE, or LONG_STRIDE for lengths above it; ``judge_last`` None for all new tokens.
    """

    documents: int = 10
    windows: int = 10
    stride: int | None = None
    judge_last: int | None = None

    def stride_for(self, length: int) -> int:
        """Return the tokens between the starts of windows of ``length`` tokens."""
        return self.stride or (LONG_STRIDE if length > LONG_STRIDE else STRIDE)


def windows_of(
    ids: list[int], opening: tuple[int, ...], length: int, stride: int, most: int, judge_last: int | None = None
) -> list[Window]:
    """Return at most ``most`` windows of ``length`` tokens over a document's token ids, which have no special tokens.

    Every window begins with the special tokens ``opening``, which count, ``stride`` tokens after the previous one.
    """
    span = length - len(opening)
    found: list[Window] = []
    for start in range(0, len(ids) - span + 1, stride)[:most]:
        # Without special tokens, the first token has no context to be predicted from.
        new = span if opening else span - 1
        if found:
            new = min(new, stride)
        if judge_last is not None:
            new = min(new, judge_last)
        found.append(Window([*opening, *ids[start : start + span]], length - new))
    return found


def judge(
    target: Target, corpus: Corpus, set_name: str, length: int, seed: int, settings: PerplexitySettings
) -> list[dict[str, Any]]:
    """Score documents at one length with one set; documents and positions depend on the seed, not on the set.

    Returns:
        Per document: its name, the first token and number of its windows, scored tokens, and their losses' sum in nats.

    Raises FactorError when too few texts are long enough, or a loss is not finite.
    """
    rng = random.Random(f"perplexity {length} {seed}")
    stride, span = settings.stride_for(length), length - len(target.opening)
    chosen = choose(corpus, target.plain_ids, len(target.opening), length, rng, settings.documents)
    judged: list[dict[str, Any]] = []
    for document, ids in chosen:
        count = min(settings.windows, (len(ids) - span) // stride + 1)
        start = rng.randrange(len(ids) - span - (count - 1) * stride + 1)
        windows = windows_of(ids[start:], target.opening, length, stride, count, settings.judge_last)
        values = [value for losses in target.losses(windows, set_name) for value in losses]
        if not all(math.isfinite(value) for value in values):
            raise FactorError(
                f"perplexity: set {set_name!r}, length {length}, document {document.name!r}: a loss is not finite; "
                "the model cannot be evaluated with this set and dtype"
            )
        found = {"document": document.name, "start": start, "windows": count}
        judged.append(found | {"tokens": len(values), "nll": math.fsum(values)})
    return judged


def choose(
    corpus: Corpus, encode: Callable[[str], list[int]], opening: int, length: int, rng: random.Random, wanted: int
) -> list[tuple[Document, list[int]]]:
    """Choose ``wanted`` documents that fill a window of ``length`` tokens, ``opening`` special tokens included.

    Returns:
        The documents with the token ids that ``encode`` returns, without special tokens.

    Raises FactorError when there are fewer.
    """
    found: list[tuple[Document, list[int]]] = []
    longest = 0
    for document in rng.sample(corpus.documents, len(corpus.documents)):
        ids = corpus.ids(document, encode)
        longest = max(longest, len(ids))
        if opening + len(ids) >= length:
            found.append((document, ids))
        if len(found) == wanted:
            return found
    raise FactorError(
        f"--text {corpus.source!r}: {len(found)} of {len(corpus.documents)} documents are long enough for length {length}, "
        f"but --documents requests {wanted}; the longest has {longest} tokens"
    )
