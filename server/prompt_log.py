"""The factor sets of the prompts that one HTTP request runs, in order.

The log of the request in hand is in a context variable: handlers, and the tasks they start, see the log of their own
request and of no other.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class PromptLog:
    """What the middleware learns about one HTTP request.

    Attributes:
        sets: The names of the factor sets of its prompts, in the order in which they were given to the engine.
        asked: The value of ``vllm_xargs.rope_factor_set`` in its body, None where the body has none.
        complete: True when its prompts are all known; what the engine is given later are steps of answering them.
    """

    sets: list[str] = field(default_factory=list)
    asked: object = None
    complete: bool = False


current_log: ContextVar[PromptLog | None] = ContextVar("ropeswitch_prompt_log", default=None)
