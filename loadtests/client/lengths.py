"""Length distributions of a workload, in tokens: a mapping with one key, or a bare number."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.bands import tokens

LONGEST = 1 << 30


def _count(value: Any) -> Any:
    """Convert text such as ``8k`` to a number; return other values unchanged."""
    if isinstance(value, str):
        try:
            return tokens(value)
        except UsageError as error:
            raise ValueError(str(error)) from error
    return value


Tokens = Annotated[int, BeforeValidator(_count), Field(ge=1, le=LONGEST, strict=True)]


class Strict(BaseModel):
    """Base of the parts of a workload file, in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Range(Strict):
    """From ``min`` to ``max``, both included."""

    min: Tokens
    max: Tokens

    @model_validator(mode="after")
    def _in_order(self) -> "Range":
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must not be above max ({self.max})")
        return self


class LognormalShape(Range):
    """Lognormal around ``median``, clipped to ``min`` and ``max``; ``sigma`` is the standard deviation of the logarithm."""

    median: Tokens
    sigma: Annotated[float, Field(gt=0, le=5)]
    min: Tokens = 1


class ParetoShape(Range):
    """P(length > n) = (min / n) ^ shape, truncated at ``max``; a smaller ``shape`` gives a heavier tail."""

    shape: Annotated[float, Field(gt=0, le=10)]


class CrossingShape(Strict):
    """Prompts that end up to ``within`` tokens below a factor set's limit, so that the answer crosses it.

    ``at`` is the limit; without it, each prompt uses one of the limits that the server lists at ``/v1/rope``.
    """

    within: Tokens
    at: Tokens | None = None


class Length(Strict):
    """Exactly one distribution."""

    fixed: Tokens | None = None
    uniform: Range | None = None
    lognormal: LognormalShape | None = None
    pareto: ParetoShape | None = None
    crossing: CrossingShape | None = None

    @model_validator(mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        """Convert a number, or text such as ``8k``, to a fixed length."""
        if isinstance(value, int | str) and not isinstance(value, bool):
            return {"fixed": value}
        if isinstance(value, dict) and len(value) == 1 and value.keys() <= cls.model_fields.keys():
            [(key, shape)] = value.items()
            if shape is None:
                raise ValueError(f"{key} has no value")
            return value
        raise ValueError(f"must be a number of tokens, or a mapping with one of the keys {', '.join(cls.model_fields)}")


def draw(length: Length, random: np.random.Generator, scale: float, limits: Sequence[int]) -> int:
    """Draw one length of at least one token, ``scale`` times the distribution's.

    Raises UsageError for a crossing without ``at`` if the server lists no limits.
    """
    if length.crossing:
        return _before_a_limit(length.crossing, random, scale, limits)
    return max(1, round(scale * _unscaled(length, random)))


def _unscaled(length: Length, random: np.random.Generator) -> float:
    if uniform := length.uniform:
        return float(random.integers(uniform.min, uniform.max, endpoint=True))
    if shape := length.lognormal:
        return float(np.clip(random.lognormal(np.log(shape.median), shape.sigma), shape.min, shape.max))
    if pareto := length.pareto:
        # Inverse CDF of a Pareto distribution truncated at max.
        left = 1 - random.random() * (1 - (pareto.min / pareto.max) ** pareto.shape)
        return float(min(pareto.max, pareto.min * left ** (-1 / pareto.shape)))
    assert length.fixed is not None, "a length has exactly one distribution"
    return length.fixed


def _before_a_limit(shape: CrossingShape, random: np.random.Generator, scale: float, limits: Sequence[int]) -> int:
    if shape.at is not None:
        limit = round(scale * shape.at)
    elif limits:
        limit = int(random.choice(np.asarray(limits)))
    else:
        raise UsageError(
            "crossing: at is missing, and the server's /v1/rope lists no switch of factor sets: set at to a number of tokens"
        )
    within = max(1, round(scale * shape.within))
    return max(1, limit - int(random.integers(0, min(within, limit))))
