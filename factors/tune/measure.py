"""Measures a set on documents and pass keys of one length, and compares two of them."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.passkey import REPLY_TOKENS, Question, ask, is_found
from ropeswitch.factors.evaluate.target import special_tokens
from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.kept import Kept, digest
from ropeswitch.factors.local_model import LocalModel

# What a document is for: choosing between sets, confirming the choice, learning, and stopping that in time. A text keeps
# its part at every length.
CHOOSE, CONFIRM, LEARN, STOP = "choose", "confirm", "learn", "stop"
_PARTS = (CHOOSE, CONFIRM, CHOOSE, CONFIRM, LEARN, LEARN, STOP)
# Nats in place of a loss that is not finite.
NEVER = 100.0
# Texts that begin with the same characters are one text.
SAME = 2000


@dataclass(frozen=True)
class Losses:
    """Mean losses of each document in nats: of the tokens beyond the window, which decide, and of all tokens."""

    beyond: tuple[float, ...]
    all: tuple[float, ...]


class Texts:
    """The documents of a corpus by what they are for, cut to a length that they fill."""

    def __init__(self, corpus: Corpus, model: LocalModel, seed: int) -> None:
        self._corpus, tokenizer = corpus, model.tokenizer
        # Texts exceed the model's own maximum on purpose.
        tokenizer.model_max_length = 1 << 62
        self.encode: Callable[[str], list[int]] = partial(tokenizer.encode, add_special_tokens=False)
        self.opening, _ = special_tokens(lambda text, special: tokenizer.encode(text, add_special_tokens=special))
        different = list({each.text[:SAME]: each for each in corpus.documents}.values())
        random.Random(f"tune {seed}").shuffle(different)
        self._parts = {part: [each for at, each in enumerate(different) if _PARTS[at % 7] == part] for part in _PARTS}

    def of(self, part: str, length: int, most: int) -> list[torch.Tensor]:
        """Return the ids ``[length]`` of at most ``most`` documents; FactorError where fewer than two are long enough."""
        found: list[torch.Tensor] = []
        for document in self._parts[part]:
            ids = [*self.opening, *self._corpus.ids(document, self.encode)]
            if len(ids) >= length:
                found.append(torch.tensor(ids[:length]))
            if len(found) == most:
                break
        if len(found) < 2:
            raise FactorError(
                f"--text {self._corpus.source!r}: {len(found)} of the {len(self._parts[part])} different documents to "
                f"{part} by have {length} tokens, but at least 2 are needed; of 7 documents 2 are to choose by, 2 to "
                "confirm, 2 to learn from and 1 to stop by"
            )
        return found

    def question(self, length: int, number: int) -> Question:
        """Return a pass-key prompt of ``length`` tokens less the reply's; FactorError where there is none."""
        return ask(self.prompt_ids, length - REPLY_TOKENS, random.Random(f"tune {length} {number}"))

    def prompt_ids(self, text: str) -> list[int]:
        return [*self.opening, *self.encode(text)]


@dataclass(frozen=True)
class Measurer:
    """Measures sets of a model, and keeps what it found; ``passed`` is called with the tokens of each pass."""

    model: LocalModel
    texts: Texts
    kept: Kept
    window: int
    passed: Callable[[int], None]

    def losses(self, factor_set: FactorSet, documents: Sequence[torch.Tensor]) -> Losses:
        """Return the losses of a set on whole documents; :data:`NEVER` where a token's is not finite."""
        found = []
        for ids in documents:
            of = digest([factor_set.rotates, ids.tolist()])
            found.append(self.kept.get(of, partial(self._losses, factor_set, ids)) or [NEVER, NEVER])
            self.passed(len(ids))
        beyond, whole = zip(*found, strict=True)
        return Losses(beyond, whole)

    def _losses(self, factor_set: FactorSet, ids: torch.Tensor) -> list[float] | None:
        losses = self.model.losses(ids[None], factor_set)[0].double()
        means = [float(losses[self.window - 1 :].mean()), float(losses.mean())]
        return means if all(map(math.isfinite, means)) else None

    def keys(self, factor_set: FactorSet, length: int, tries: int) -> int:
        """Return how many of ``tries`` pass keys a set finds in prompts of about ``length`` tokens."""
        found = 0
        for number in range(tries):
            question = self.texts.question(length, number)
            of = digest([factor_set.rotates, question.text])
            found += self.kept.get(of, partial(self._finds, factor_set, question))
            self.passed(length)
        return found

    def _finds(self, factor_set: FactorSet, question: Question) -> bool:
        ids = torch.tensor([self.texts.prompt_ids(question.text)])
        reply = self.model.generate(ids, factor_set, REPLY_TOKENS)
        return is_found(self.model.tokenizer.decode(reply[0], skip_special_tokens=True), question.key)
