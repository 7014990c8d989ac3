"""Perplexities with transformers: one candidate at a time, the documents together."""

from collections.abc import Sequence

import torch

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.search.model_facts import ModelFacts
from ropeswitch.factors.search.objective import Objective

# Of one forward, where a single document is not longer.
TOKENS = 16384


class TransformersEvaluator:
    """Evaluates on this machine's CPU, or on its GPU where PyTorch finds one.

    Attributes:
        name: ``transformers``.
        batch: Candidates that one call should bring: any more would only make the progress coarser.
    """

    name = "transformers"
    batch = 1

    def __init__(self, facts: ModelFacts, objective: Objective, dtype: str = "float32") -> None:
        self._model = LocalModel.load(facts.name, dtype)
        if (self._model.rotary_dim, self._model.theta) != (2 * facts.pairs, facts.theta):
            raise FactorError(
                f"model {facts.name!r}: rotates {self._model.rotary_dim} values with base {self._model.theta:g}, where its "
                f"config says {2 * facts.pairs} and {facts.theta:g}"
            )
        self._objective = objective
        self._rows = torch.tensor(objective.rows)
        self._together = max(1, TOKENS // objective.length)

    def evaluate(self, sets: Sequence[FactorSet]) -> list[float]:
        """Perplexities of the objective under each set, in order."""
        return [self._perplexity(each) for each in sets]

    def close(self) -> None:
        """Nothing outlives the object."""

    def _perplexity(self, factor_set: FactorSet) -> float:
        losses: list[list[float]] = []
        length, judged = self._objective.length, self._objective.judged
        for start in range(0, len(self._rows), self._together):
            ids = self._rows[start : start + self._together]
            counts = judged[start : start + self._together]
            found = self._model.losses(ids, [factor_set], first=length - max(counts))
            losses += [row[len(row) - count :].tolist() for row, count in zip(found, counts, strict=True)]
        return self._objective.perplexity(losses)
