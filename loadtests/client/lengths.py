"""Length distributions of a workload, in tokens: a mapping with one key, or a bare number."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

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


class Fixed(Strict):
    fixed: Tokens


class Uniform(Strict):
    uniform: Range


class Lognormal(Strict):
    lognormal: LognormalShape


class Pareto(Strict):
    pareto: ParetoShape


class Crossing(Strict):
    crossing: CrossingShape


Drawn = Fixed | Uniform | Lognormal | Pareto | Crossing
NAMES = ("fixed", "uniform", "lognormal", "pareto", "crossing")


def _name(value: Any) -> str | None:
    """Return the name of a distribution, given as a one-key mapping or parsed; None if it is not one."""
    keys = list(value) if isinstance(value, dict) else list(getattr(type(value), "model_fields", ()))
    return keys[0] if len(keys) == 1 and keys[0] in NAMES else None


def _single(value: Any) -> Any:
    """Convert a number, or text such as ``8k``, to a fixed length."""
    return {"fixed": value} if isinstance(value, int | str) else value


Length = Annotated[
    Annotated[Fixed, Tag("fixed")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[Lognormal, Tag("lognormal")]
    | Annotated[Pareto, Tag("pareto")]
    | Annotated[Crossing, Tag("crossing")],
    Discriminator(
        _name,
        custom_error_type="length",
        custom_error_message=f"must be a number of tokens, or a mapping with one of the keys {', '.join(NAMES)}",
    ),
    BeforeValidator(_single),
]


def draw(length: Drawn, random: np.random.Generator, scale: float, limits: Sequence[int]) -> int:
    """Draw one length.

    Args:
        length: The distribution.
        random: Random generator.
        scale: Factor for every number of tokens in the distribution.
        limits: Maximum lengths of the server's factor sets, except the last.

    Returns:
        Tokens, at least 1.

    Raises:
        UsageError: for a crossing without ``at`` if the server lists no limits.
    """
    if isinstance(length, Crossing):
        return _before_a_limit(length.crossing, random, scale, limits)
    return max(1, round(scale * _unscaled(length, random)))


def _unscaled(length: Fixed | Uniform | Lognormal | Pareto, random: np.random.Generator) -> float:
    match length:
        case Fixed():
            return length.fixed
        case Uniform():
            return float(random.integers(length.uniform.min, length.uniform.max, endpoint=True))
        case Lognormal():
            shape = length.lognormal
            return float(np.clip(random.lognormal(np.log(shape.median), shape.sigma), shape.min, shape.max))
        case Pareto():
            # Inverse CDF of a Pareto distribution truncated at max.
            pareto = length.pareto
            left = 1 - random.random() * (1 - (pareto.min / pareto.max) ** pareto.shape)
            return float(min(pareto.max, pareto.min * left ** (-1 / pareto.shape)))


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
