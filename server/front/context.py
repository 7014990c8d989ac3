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
        request_id: Its ID in the engine client; None until one is assigned.
        since: Arrival time, in seconds of the queue's clock.
        seen: Whether the engine client has ever known the ID.
        released: Whether it no longer waits.
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
    """The state of one HTTP request.

    Attributes:
        came: Arrival time, in seconds since 1970.
        request_id: The ID in its response's headers, or None.
        key: The digest of its API key, or ``key_limits.EVERYONE``; None before it is checked.
        refusal: The refusal, once it is refused; it is the response, regardless of the error that a handler makes of it.
        refused_tokens: Length of the refused prompt, None if it was not counted.
        error: The error of its handler, or None.
        asked: The value of ``vllm_xargs.rope_factor_set`` in its body, or None.
        alias: Its model name, if that asks for a set.
        asked_policy: The value of ``vllm_xargs.rope_ladder_policy`` in its body, or None.
        limited: Whether its body limits the output tokens.
        token_ids: Token IDs of its prompts that skip validation, by the body's field (``ingest/request.py``).
        prompts: The placement of each of its prompts, in the order in which they were passed to the engine.
        answers_in_steps: Whether prompts after its first one are steps of its answer (beam search, the Responses API).
        tickets: Its prompts in the queue.
        sequences: Its sequences in an engine.
        entered: Whether any of its prompts was passed to an engine.
        keeps_prompts: Whether to log its prompts.
        logged_prompts: Text or token IDs of its prompts, by their ID; empty unless they are logged.
        status: The HTTP status that was sent, None if the client disconnected before a response started.
        final_status: The same, or the status of the error event that ends its streamed response.
        whole: Whether the whole response was sent.
        left: Whether its client disconnected before the end of its response, unless that was an error.
        stopped: Whether the server was stopped before the request ended.
        seconds: Its duration, set at its end.
    """

    came: float = field(default_factory=time.time)
    request_id: bytes | None = None
    key: bytes | None = None
    refusal: Refusal | None = None
    refused_tokens: int | None = None
    error: Exception | None = None
    asked: object = None
    alias: Alias | None = None
    asked_policy: object = None
    limited: bool = False
    token_ids: Mapping[str, Any] = field(default_factory=dict)
    prompts: list[Placement] = field(default_factory=list)
    answers_in_steps: bool = False
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
        self.sequences.append(track)
        # An answer in many steps extends its first prompt, so only that one is logged.
        if self.keeps_prompts and not (self.answers_in_steps and self.logged_prompts):
            self.logged_prompts[track.request_id] = state.prompt_token_ids if state.prompt is None else state.prompt


current: ContextVar[RequestContext | None] = ContextVar("ropeswitch_request", default=None)
