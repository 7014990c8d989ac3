"""Length-aware scheduling's decision for one step; only ``scheduler.py`` applies it."""

from collections.abc import Set
from dataclasses import dataclass

from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class BackgroundDecision:
    """A step's decision about the internal request that prefills keys in the next set.

    Attributes:
        finish: The internal request to finish, if any; its full blocks stay in the prefix cache.
        start: The internal request to add, if any.
        request: The internal request that gets tokens or is held, if any.
        tokens: Its tokens in this step; 0 holds it.
    """

    finish: Request | None = None
    start: Request | None = None
    request: Request | None = None
    tokens: int = 0


# Most steps have no internal request.
IDLE = BackgroundDecision()


@dataclass(frozen=True, slots=True)
class StepDecision:
    """The plan of one step.

    Attributes:
        held: Running or waiting requests that get no tokens.
        budget: Token budget of the step.
        chunk: Maximum tokens of one prefill; 0 for no limit.
        offered: Waiting requests that may start, in this order.
        busy: Predicted seconds of the step without any prefill.
        spare: Seconds left for the background request; 0 if the step has a prefill.
        sort: Whether to reorder the running requests so that the last is the cheapest to preempt.
        background: The decision about the internal request.
    """

    held: Set[Request] = frozenset()
    budget: int = 0
    chunk: int = 0
    offered: tuple[Request, ...] = ()
    busy: float = 0.0
    spare: float = 0.0
    sort: bool = True
    background: BackgroundDecision = IDLE
