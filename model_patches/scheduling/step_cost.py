"""Predicts how long a step takes, from the steps measured so far.

A step's time is modelled as a sum of five nonnegative costs: one fixed, one per sequence, one per token (the linear
layers), one per (token, context token) pair (attention's arithmetic) and one per context token (reading keys and
values). Medha (arXiv:2409.17264, section 4) sizes prefill chunks by such predictions, with a simulator fitted beforehand;
here the costs are fitted while serving.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Weight of a new measurement in the mean of its kind, in the correction and in the error.
_KIND, _CORRECTION, _ERROR = 0.2, 0.25, 0.05
# Weight of measurements and assumptions from before the first request, relative to measured steps.
_PRIOR_WEIGHT = 0.1
# Bound on measured / predicted time: one step that was delayed, or read late, must not set the price of its kind.
_MOST = 4.0
# Returned if tokens cost nothing.
UNLIMITED = 2**31


class Load(NamedTuple):
    """The work of a step, or of a part of one."""

    steps: float = 0.0  # 1 for a step, 0 for a part of one.
    sequences: float = 0.0  # Number of sequences with tokens in it.
    tokens: float = 0.0  # Their total tokens.
    products: float = 0.0  # Sum over tokens of the number of tokens that each attends to.
    context: float = 0.0  # Sum over sequences of the number of tokens whose keys are read.

    def __add__(self, other: "Load") -> "Load":  # type: ignore[override]
        return Load(*(a + b for a, b in zip(self, other, strict=True)))


STEP = Load(steps=1.0)


def chunk(tokens: int, before: int) -> Load:
    """Return the load of computing ``tokens`` tokens of one sequence after ``before`` cached ones."""
    return Load(0.0, 1.0, tokens, tokens * (before + tokens / 2), before + tokens)


class StepCost:
    """The fitted cost model.

    Args:
        measured: Steps run at startup without context, as (tokens, seconds).
        hidden_size: The model's width, which sets attention's initial price: a token that attends to ``6 * hidden_size``
            others costs as much in attention as in the linear layers (Kaplan et al., arXiv:2001.08361, table 1:
            ``2 * layers * context * width`` against ``12 * layers * width ** 2`` multiplications).
    """

    def __init__(self, measured: Sequence[tuple[int, float]], hidden_size: int) -> None:
        tokens, seconds = max(measured)
        linear = seconds - min(second for _, second in measured)
        self._prior = [(STEP + chunk(count, 0), second) for count, second in measured]
        self._prior.append((STEP + chunk(tokens, 6 * hidden_size), seconds + max(linear, 0.1 * seconds)))
        # Each kind of step counts once, so that a thousand equal steps do not outweigh the few that separate the prices.
        self._kinds: dict[tuple[int, int], tuple[np.ndarray, float]] = {}
        self._correction = 1.0
        # Mean of |measured - predicted| / measured over recent steps.
        self.error = 0.0
        self._fit()

    @property
    def fitted(self) -> bool:
        """Whether as many kinds of steps were measured as there are costs; until then, some costs are assumed."""
        return len(self._kinds) >= len(STEP)

    def seconds(self, load: Load) -> float:
        """Predict the seconds that a load takes."""
        return self._correction * self._raw(load)

    def _raw(self, load: Load) -> float:
        step, sequence, token, product, context = self._prices
        steps, sequences, tokens, products, read = load
        return step * steps + sequence * sequences + token * tokens + product * products + context * read

    def tokens_within(self, seconds: float, before: int) -> int:
        """Return how many tokens of one sequence, after ``before`` cached ones, a step can compute in ``seconds`` more."""
        _, sequence, token, product, context = self._prices
        left = seconds / self._correction - sequence - context * before
        each = token + product * before + context
        if left <= 0:
            return 0
        if each + product == 0:
            return UNLIMITED
        # The root of product / 2 * n**2 + each * n = left, in a form that is numerically stable for a tiny product.
        return int(2 * left / (each + (each * each + 2 * product * left) ** 0.5))

    def length(self, tokens: int, before: int) -> int:
        """Return how many tokens at the start of a sequence take as long as ``tokens`` after ``before`` cached ones."""
        return tokens if before == 0 else max(self.tokens_within(self.seconds(chunk(tokens, before)), 0), 1)

    def observe(self, load: Load, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        raw = self._raw(load)
        predicted = self._correction * raw
        seconds = min(max(seconds, predicted / _MOST), _MOST * predicted)
        self.error += _ERROR * (abs(seconds - predicted) / seconds - self.error)
        kind = int(load.tokens).bit_length(), int(load.products).bit_length()
        if kind not in self._kinds:
            self._kinds[kind] = np.array(load), seconds
        else:
            mean, usual = self._kinds[kind]
            self._kinds[kind] = mean + _KIND * (np.array(load) - mean), usual + _KIND * (seconds - usual)
        if abs(seconds - predicted) > 0.02 * seconds:
            self._fit()
            raw = self._raw(load)
            # The error that the five costs cannot express changes little from one step to the next.
            self._correction += _CORRECTION * (min(max(seconds / raw, 1 / _MOST), _MOST) - self._correction)

    def _fit(self) -> None:
        rows = [(np.array(load), second, _PRIOR_WEIGHT) for load, second in self._prior]
        rows += [(load, second, 1.0) for load, second in self._kinds.values()]
        # Minimises errors relative to each step's time.
        matrix = np.array([load * (weight / second) for load, second, weight in rows])
        self._prices: list[float] = _nonnegative(matrix, np.array([weight for _, _, weight in rows])).tolist()


def _nonnegative(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Solve least squares with nonnegative coefficients: drop the most negative one until none is negative.

    ``matrix`` is (rows, coefficients), without a column of zeros; ``values`` is (rows,).
    """
    scale = np.linalg.norm(matrix, axis=0)
    matrix = matrix / scale
    found, kept = np.zeros(matrix.shape[1]), list(range(matrix.shape[1]))
    while kept:
        solved = np.linalg.lstsq(matrix[:, kept], values, rcond=1e-6)[0]
        if (worst := int(solved.argmin())) >= 0 and solved[worst] >= 0:
            found[kept] = solved
            break
        del kept[worst]
    return found / scale
