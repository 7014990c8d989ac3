"""Length distributions of a workload, in tokens: each is a mapping of one key, or a number by itself."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.bands import tokens

LONGEST = 1 << 30


def _count(value: Any) -> Any:
    """A number as YAML gives it, or text such as ``8k``."""
    if isinstance(value, str):
        try:
            return tokens(value)
        except UsageError as error:
            raise ValueError(str(error)) from error
    return value


Tokens = Annotated[int, BeforeValidator(_count), Field(ge=1, le=LONGEST, strict=True)]


class Strict(BaseModel):
    """A part of a workload file: unknown keys are errors."""

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
    """The logarithm is normally distributed around that of ``median``, with the standard deviation ``sigma``."""

    median: Tokens
    sigma: Annotated[float, Field(gt=0, le=5)]
    min: Tokens = 1


class ParetoShape(Range):
    """P(longer than n) = (min / n) ^ shape, cut off at ``max``: the smaller the shape, the heavier the tail."""

    shape: Annotated[float, Field(gt=0, le=10)]


class CrossingShape(Strict):
    """Prompts that end up to ``within`` tokens before a factor set's limit, so that the answer grows over it.

    ``at`` is the limit; without it, the limits are those that the server tells at ``/v1/rope``.
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
    """Which distribution a mapping of one key, or a parsed one, is; None where it is none."""
    keys = list(value) if isinstance(value, dict) else list(getattr(type(value), "model_fields", ()))
    return keys[0] if len(keys) == 1 and keys[0] in NAMES else None


def _single(value: Any) -> Any:
    """A number, or text such as ``8k``, is a fixed length."""
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
    """One length.

    Args:
        length: The distribution.
        random: Where randomness comes from.
        scale: What every count of the distribution is multiplied by.
        limits: Lengths that the server's factor sets reach, all but the last.

    Returns:
        Tokens, at least 1.

    Raises:
        UsageError: for a crossing where the server tells no limits.
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
            # The inverse of the distribution function of a Pareto distribution that is cut off at max.
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
            "crossing: at is missing, and the server tells no factor sets that switch at /v1/rope: give a number of tokens"
        )
    within = max(1, round(scale * shape.within))
    return max(1, limit - int(random.integers(0, min(within, limit))))
