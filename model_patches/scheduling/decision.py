"""Length-aware scheduling's decision for one step; only ``scheduler.py`` applies it."""

from collections.abc import Set
from dataclasses import dataclass

from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class BackgroundDecision:
    """A step's decision about the internal request that prefills keys in the next set."""

    finish: Request | None = None  # To finish; its full blocks stay in the prefix cache.
    start: Request | None = None  # To add.
    request: Request | None = None  # That gets tokens or is held.
    tokens: int = 0  # Of `request` in this step; 0 holds it.


# Most steps have no internal request.
IDLE = BackgroundDecision()


@dataclass(frozen=True, slots=True)
class StepDecision:
    """The plan of one step."""

    held: Set[Request] = frozenset()  # Running or waiting requests that get no tokens.
    budget: int = 0  # Tokens of the step.
    chunk: int = 0  # Maximum tokens of one prefill; 0 for no limit.
    offered: tuple[Request, ...] = ()  # Waiting requests that may start, in this order.
    busy: float = 0.0  # Predicted seconds of the step without any prefill.
    spare: float = 0.0  # Seconds left for the background request; 0 if the step has a prefill.
    sort: bool = True  # Whether to reorder the running requests so that the last is the cheapest to preempt.
    background: BackgroundDecision = IDLE
