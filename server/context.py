"""One HTTP request, from its arrival to its line in the access log: the only place that keeps the state of a request.

The context is in one context variable: handlers, and the tasks they start, see their own request and no other. Prompts of
the server's own making, and realtime sessions (WebSockets), have none.
"""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ropeswitch.server.front.refusal import Refusal, RefusedError, refused
from ropeswitch.server.ingest.faults import Fault
from ropeswitch.server.length_metrics.track import Track
from ropeswitch.server.prompt_set import PromptSet


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
class RequestContext:
    """One HTTP request.

    Attributes:
        came: When it came, in seconds since 1970.
        key: Whose it is: the digest of its API key, None where it has none.
        refusal: Why it is refused, once it is; its answer then says so, whatever a handler makes of it.
        refused_tokens: The length of the prompt that was refused, None where it was not counted.
        fault: The first value of its body that no engine can be sent, if there is one (``body_errors.py``).
        asked: The value of ``vllm_xargs.rope_factor_set`` in its body, None where the body has none.
        token_ids: Token IDs of its prompts that validation is spared, by the body's field (``ingest/request.py``).
        prompts: The decision for each of its prompts, in the order in which they were given to the engine.
        decided: The decision for each request to the engine, by the ID that it goes into the engine under.
        answering: Whether its prompts are all known; what the engine is given later are steps of answering them.
        tickets: Its prompts in the queue.
        sequences: Its sequences in an engine.
        entered: Whether a prompt of it was given to an engine.
        keeps_prompts: Whether its prompts are to be logged.
        logged_prompts: Text or token IDs of its prompts, by the ID that each had; empty unless they are kept.
        status: The HTTP status that was sent, None where no answer was started before the client left.
        final_status: The same, or the status of the error that its stream ends with.
        whole: Whether the answer was given to its end.
        left: Whether its client left before it had its whole answer, or an error.
        stopped: Whether the server was stopped meanwhile.
        seconds: How long it took, once it is over.
    """

    came: float = field(default_factory=time.time)
    key: bytes | None = None
    refusal: Refusal | None = None
    refused_tokens: int | None = None
    fault: Fault | None = None
    asked: object = None
    token_ids: Mapping[str, Any] = field(default_factory=dict)
    prompts: list[PromptSet] = field(default_factory=list)
    decided: dict[str, PromptSet] = field(default_factory=dict)
    answering: bool = False
    tickets: list[Ticket] = field(default_factory=list)
    sequences: list[Track] = field(default_factory=list)
    entered: bool = False
    keeps_prompts: bool = False
    logged_prompts: dict[str, Any] = field(default_factory=dict)
    status: int | None = None
    final_status: int | None = None
    whole: bool = False
    left: bool = False
    stopped: bool = False
    seconds: float = 0.0

    def refuse(self, error: RefusedError, tokens: int | None = None) -> RefusedError:
        """Note why the request is refused, and count it; a request is refused once.

        Args:
            error: With the refusal; returned, to be raised.
            tokens: The length of the prompt, None where the request is refused before it is known.
        """
        if self.refusal is None:
            self.refusal, self.refused_tokens = error.refusal, tokens
            refused(error.refusal.reason, tokens)
        return error

    def add(self, track: Track, state: Any) -> None:
        """Note a sequence that is given to an engine.

        Args:
            track: What will be known of it.
            state: ``vllm.v1.engine.output_processor.RequestState``.
        """
        self.sequences.append(track)
        # Of an answer in many steps, whose prompts grow from the first one, that one is enough.
        if self.keeps_prompts and not (self.answering and self.logged_prompts):
            self.logged_prompts[track.request_id] = state.prompt_token_ids if state.prompt is None else state.prompt


current: ContextVar[RequestContext | None] = ContextVar("ropeswitch_request", default=None)
