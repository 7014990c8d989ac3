"""The state of one HTTP request, from its arrival to its line in the access log; it is kept nowhere else.

The state is in one context variable, so handlers and the tasks they start see only their own request. Prompts that the
server makes itself, and realtime sessions (WebSockets), have none.
"""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ropeswitch.model_patches.switch.placement import Placement
from ropeswitch.server.app.aliases import Alias
from ropeswitch.server.front.refusal import Refusal, RefusedError, refused
from ropeswitch.server.metrics.track import Track


@dataclass
class Ticket:
    """A prompt that waits for its first token.

    Attributes:
        index: The index of its length class in the ladder.
        requests: Number of answers to generate.
        tokens: Prompt tokens, times the number of answers.
        request_id: Its ID in the engine client.
        since: Arrival time, in seconds of the queue's clock.
        seen: Whether the engine client has ever known the ID.
        released: Whether it no longer waits.
    """

    index: int
    requests: int
    tokens: int
    request_id: str
    since: float
    seen: bool = False
    released: bool = False


@dataclass(frozen=True)
class Asked:
    """What a request's body asks for, known once it is parsed.

    Attributes:
        factor_set: The value of ``vllm_xargs.rope_factor_set``, or None.
        policy: The value of ``vllm_xargs.rope_ladder_policy``, or None.
        alias: Its model name, if that asks for a set.
        limited: Whether it limits the output tokens.
        in_steps: Whether prompts after its first one are steps of its answer (beam search, the Responses API).
        token_ids: Token IDs of its prompts that skip validation, by the body's field (``bodies/request.py``).
    """

    factor_set: object = None
    policy: object = None
    alias: Alias | None = None
    limited: bool = False
    in_steps: bool = False
    token_ids: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entered:
    """What a request has passed to an engine.

    Attributes:
        placements: The placement of each of its prompts, in order.
        answers: The tasks of its answers in steps, each of which has had its first prompt.
        tickets: Its prompts in the queue.
        sequences: Its sequences; empty with ``--disable-log-stats``.
        logged: Text or token IDs of its prompts, by their ID; empty unless they are logged.
    """

    placements: list[Placement] = field(default_factory=list)
    answers: set[object] = field(default_factory=set)
    tickets: list[Ticket] = field(default_factory=list)
    sequences: list[Track] = field(default_factory=list)
    logged: dict[str, Any] = field(default_factory=dict)


@dataclass
class Sent:
    """What was sent as a request's answer.

    Attributes:
        status: The HTTP status, None if the client disconnected before a response started.
        final_status: The same, or the status of the error event that ends a stream.
        whole: Whether the whole response was sent.
        left: Whether the client disconnected before the end of its response, unless that was an error.
        stopped: Whether the server was stopped before that.
    """

    status: int | None = None
    final_status: int | None = None
    whole: bool = False
    left: bool = False
    stopped: bool = False


@dataclass
class RequestContext:
    """The state of one HTTP request, by the stages that it passes.

    Attributes:
        came: Arrival time, in seconds since 1970.
        request_id: The ID in its response's headers, or None.
        keeps_prompts: Whether to log its prompts.
        asked: Set once its body is parsed.
        refusal: The refusal, once it is refused; it is the response, regardless of the error that a handler makes of it.
        refused_tokens: Length of the refused prompt, None if it was not counted.
        error: The error of its handler, or None.
        entered: See :class:`Entered`.
        sent: See :class:`Sent`.
    """

    came: float = field(default_factory=time.time)
    request_id: bytes | None = None
    keeps_prompts: bool = False
    asked: Asked = Asked()
    refusal: Refusal | None = None
    refused_tokens: int | None = None
    error: Exception | None = None
    entered: Entered = field(default_factory=Entered)
    sent: Sent = field(default_factory=Sent)

    def refuse(self, error: RefusedError, tokens: int | None = None) -> RefusedError:
        """Record and count the refusal of the request; only the first one counts.

        Args:
            error: Holds the refusal; returned, for the caller to raise.
            tokens: The prompt's length, None if it is not known yet.
        """
        if self.refusal is None:
            self.refusal, self.refused_tokens = error.refusal, tokens
            refused(error.refusal.reason, tokens)
        return error

    def add(self, track: Track, state: Any) -> None:
        """Record a sequence that is passed to an engine.

        Args:
            track: The sequence's record for metrics and logs.
            state: ``vllm.v1.engine.output_processor.RequestState``.
        """
        self.entered.sequences.append(track)
        # An answer in many steps extends its first prompt, so only that one is logged.
        if self.keeps_prompts and not (self.asked.in_steps and self.entered.logged):
            self.entered.logged[track.request_id] = state.prompt_token_ids if state.prompt is None else state.prompt


current: ContextVar[RequestContext | None] = ContextVar("ropeswitch_request", default=None)
