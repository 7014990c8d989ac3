"""The HTTP request in hand, as the front of the server and the way into the engine both see it.

It is in a context variable: handlers, and the tasks they start, see their own request and no other.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from ropeswitch.server.front.refusal import Refusal
from ropeswitch.server.ingest.faults import Fault


@dataclass
class Ticket:
    """A prompt that waits for its first token.

    Attributes:
        index: Its length class, by its place in the ladder.
        requests: How many answers it is to have.
        tokens: Prompt tokens of all of them together.
        request_id: The ID under which the engine client knows it; None where that comes later.
        since: When it came, in seconds of the queue's clock.
        seen: Whether the engine client has been seen to know it.
        released: Whether it waits no more.
    """

    index: int
    requests: int
    tokens: int
    request_id: str | None
    since: float
    seen: bool = False
    released: bool = False


@dataclass
class FrontRequest:
    """One HTTP request.

    Attributes:
        refusal: Why it is refused, once it is; its answer then says so, whatever a handler makes of it.
        tickets: Its prompts.
        status: The HTTP status of the answer, or of the error that its stream ends with; None before it starts.
        whole: Whether the answer was given to its end.
        over: What is to be called when all of its answer that there will be was sent.
        fault: What of its body could be sent to no engine, if anything (``body_errors.py``).
    """

    refusal: Refusal | None = None
    tickets: list[Ticket] = field(default_factory=list)
    status: int | None = None
    whole: bool = False
    over: list[Callable[[], None]] = field(default_factory=list)
    fault: Fault | None = None


current_request: ContextVar[FrontRequest | None] = ContextVar("ropeswitch_front_request", default=None)
