"""Evaluates candidates with transformers: one at a time, with documents batched."""

from collections.abc import Sequence

import torch

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.search.model_facts import ModelFacts
from ropeswitch.factors.search.objective import Objective

# Maximum tokens per forward pass, unless a single document is longer.
TOKENS = 16384


class TransformersEvaluator:
    """Evaluates on the GPU if PyTorch finds one, else on the CPU.

    Attributes:
        name: ``transformers``.
        batch: Candidates per call: more would only make progress coarser.
    """

    name = "transformers"
    batch = 1

    def __init__(self, facts: ModelFacts, objective: Objective, dtype: str = "float32") -> None:
        self._model = LocalModel.load(facts.name, dtype)
        rotated = self._model.rope.rotary_dim
        if rotated != facts.rope.rotary_dim:
            raise FactorError(
                f"model {facts.name!r}: rotates {rotated} values, but its config describes {facts.rope.rotary_dim}"
            )
        self._objective = objective
        self._rows = torch.tensor(objective.rows)
        self._together = max(1, TOKENS // objective.length)

    def evaluate(self, sets: Sequence[FactorSet]) -> list[float]:
        """Return the objective's perplexity under each set, in order."""
        return [self._perplexity(each) for each in sets]

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _perplexity(self, factor_set: FactorSet) -> float:
        losses: list[list[float]] = []
        length, judged = self._objective.length, self._objective.judged
        for start in range(0, len(self._rows), self._together):
            ids = self._rows[start : start + self._together]
            counts = judged[start : start + self._together]
            found = self._model.losses(ids, factor_set, first=length - max(counts))
            losses += [row[len(row) - count :].tolist() for row, count in zip(found, counts, strict=True)]
        return self._objective.perplexity(losses)
