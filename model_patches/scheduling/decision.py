"""What length-aware scheduling decides about a step; ``scheduler.py`` alone applies it."""

from collections.abc import Set
from dataclasses import dataclass

from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class BackgroundDecision:
    """What happens to the internal request that prefills the next set's keys.

    Attributes:
        finish: The internal request to end, if any; its full blocks stay in the prefix cache.
        start: The internal request to add, if any.
        request: The internal request that gets tokens or is held, if any.
        tokens: Its tokens in this step; 0 holds it.
    """

    finish: Request | None = None
    start: Request | None = None
    request: Request | None = None
    tokens: int = 0


# No internal request, as in most steps.
IDLE = BackgroundDecision()


@dataclass(frozen=True, slots=True)
class StepDecision:
    """One step, as planned.

    Attributes:
        held: Requests that get no token, whether they run or wait.
        budget: Tokens of the step.
        chunk: Maximum tokens of one prefill; 0 for no limit.
        offered: Waiting requests that may start, in this order.
        busy: Seconds that the step is predicted to take without any prefill.
        spare: Seconds left for the background request; 0 where the step has a prefill.
        sort: Whether the running requests must be put in the order in which they are to keep their blocks.
        background: What happens to the background request.
    """

    held: Set[Request] = frozenset()
    budget: int = 0
    chunk: int = 0
    offered: tuple[Request, ...] = ()
    busy: float = 0.0
    spare: float = 0.0
    sort: bool = True
    background: BackgroundDecision = IDLE
