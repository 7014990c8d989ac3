"""The state of one HTTP request, from its arrival to its line in the access log; it is kept nowhere else.

The state is in one context variable, so handlers and the tasks they start see only their own request. Prompts that the
server makes itself, and realtime sessions (WebSockets), have none.
"""

import asyncio
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
    """A prompt that waits for its first token."""

    client: bytes  # whose share it uses
    index: int  # of its length class in the ladder
    requests: int  # answers to generate
    tokens: int  # prompt tokens, times the number of answers
    request_id: str  # in the engine client
    since: float  # arrival time, in seconds of the queue's clock
    seen: bool = False  # whether the engine client has ever known the ID


@dataclass(frozen=True)
class Asked:
    """What a request's body asks for, known once it is parsed."""

    factor_set: object = None  # vllm_xargs.rope_factor_set
    policy: object = None  # vllm_xargs.rope_ladder_policy
    alias: Alias | None = None  # its model name, if that asks for a set
    limited: bool = False  # whether it limits the output tokens
    beams: int = 0  # sequences of each prompt in a beam search; 0 without one
    in_steps: bool = False  # whether later prompts are steps of its answer (beam search, the Responses API)
    # Token IDs of its prompts that skip validation, by the body's field (bodies/request.py).
    token_ids: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entered:
    """What a request has passed to an engine."""

    placements: list[Placement] = field(default_factory=list)  # one for each prompt, in order
    answers: set[object] = field(default_factory=set)  # tasks of answers in steps that had their first prompt
    tickets: list[Ticket] = field(default_factory=list)
    sequences: list[Track] = field(default_factory=list)  # empty with --disable-log-stats


@dataclass
class Sent:
    """What was sent as a request's answer."""

    status: int | None = None  # None if the client disconnected before a response started
    final_status: int | None = None  # the same, or the status of the error event that ends a stream
    whole: bool = False
    left: bool = False  # whether the client disconnected before the end of its response, unless that was an error
    stopped: bool = False  # whether the server was stopped before that


@dataclass
class RequestContext:
    """The state of one HTTP request, by the stages that it passes."""

    came: float = field(default_factory=time.time)  # seconds since 1970
    key: bytes | None = None  # digest of its API key; None if it needs none
    client: bytes = b""  # digest of its key, or else of its address: whose share it uses
    sequences: int = 0  # that count towards its client's limit
    held_bytes: int = 0  # of its long body, until its response has ended: a stream's handler keeps it
    request_id: bytes | None = None  # for its response's headers
    asked: Asked = Asked()
    refusal: Refusal | None = None  # the response, regardless of the error that a handler makes of it
    refused_tokens: int | None = None  # length of the refused prompt, None if it was not counted
    error: Exception | None = None  # of its handler
    media_bytes: int = 0  # fetched
    image_pixels: list[int] = field(default_factory=list)  # of each image; appended by several threads
    fetching: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))  # its connections for media
    entered: Entered = field(default_factory=Entered)
    # What its prompts have cost so far (limits/cost.py): estimated seconds to compile their grammars, and log-probabilities
    # of outputs as long as they may be: (1 + alternatives) times sequences times tokens.
    grammar_seconds: float = 0.0
    logprobs: int = 0
    prompt_logprobs: int = 0
    sent: Sent = field(default_factory=Sent)

    def refuse(self, error: RefusedError, tokens: int | None = None) -> RefusedError:
        """Record and count the refusal of the request, only the first one; return the error, for the caller to raise."""
        if self.refusal is None:
            self.refusal, self.refused_tokens = error.refusal, tokens
            refused(error.refusal.reason, tokens)
        return error


current: ContextVar[RequestContext | None] = ContextVar("ropeswitch_request", default=None)
