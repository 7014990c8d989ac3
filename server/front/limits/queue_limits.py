"""Limits the sequences and prompt tokens of each client in flight, and those that wait in each length class.

A request counts as one sequence from its beginning, as all of its sequences once its prompts are known, until it has ended.
A prompt is in the class of the first factor set that is long enough for it, so short prompts are accepted however many long
ones wait. It waits from the time it is given to the engine client until it is computed; the client is polled for that. Each
API server process counts its own prompts.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from ropeswitch.server.front.context import RequestContext, Ticket, current
from ropeswitch.server.front.limits.keys import Shares
from ropeswitch.server.front.refusal import Refusal, RefusedError, invalid_body, no_room
from ropeswitch.server.metrics.instruments import Reason

# Seconds between two polls for the prompts that still wait; counts and gauges are as old.
LOOK_SECONDS = 0.25

# Whether the prompt of a request ID is still to be computed; None if the engine client does not know the ID.
Waits = Callable[[str], bool | None]


class LengthClass:
    """The name of a factor set, and the clients' shares of its waiting requests and of their tokens."""

    def __init__(self, name: str, max_requests: int, max_tokens: int) -> None:
        self.name = name
        self.requests = Shares("--max-queued-requests", max_requests, weight=1)
        self.tokens = Shares("--max-queued-tokens", max_tokens, weight=1)


class Admission:
    """Admits requests, and their prompts to the engine; used only on the event loop.

    Args:
        classes: By their place in the ladder.
        sequences: Maximum sequences in flight of each client; ``tokens`` of their prompts, counted for each sequence.
        max_prompt_tokens: Maximum tokens of a prompt; None for the model's limit.
        make_error: Makes the error for a refusal; vLLM's handlers answer it with the refusal's status.
    """

    def __init__(
        self,
        classes: Sequence[LengthClass],
        sequences: int,
        tokens: int,
        waits: Waits,
        max_prompt_tokens: int | None = None,
        make_error: Callable[[Refusal], RefusedError] = RefusedError,
    ) -> None:
        self.classes = tuple(classes)
        self.sequences = Shares("--max-sequences-per-key", sequences)
        self.tokens = Shares("--max-tokens-per-key", tokens)
        self._waits = waits
        self._max_prompt_tokens, self._make_error = max_prompt_tokens, make_error
        # In order of arrival.
        self._tickets: dict[int, Ticket] = {}

    def begin(self, context: RequestContext) -> None:
        """Count a request or WebSocket as one sequence of its client until :meth:`end`, or raise RefusedError."""
        if self.sequences.room(context.client) < 1:
            raise RefusedError(_too_many("sequences", 1, context.client, self.sequences))
        self.sequences.add(context.client, 1)
        context.sequences = 1

    def admit(self, tokens: int, index: int, copies: int, request_id: str) -> None:
        """Count a prompt of the current HTTP request, in length class ``index``, as waiting for ``copies`` answers.

        Raises RefusedError for a prompt that is too long or finds no room. The server's own prompts are not counted.
        """
        if (context := current.get()) is None:
            return
        ticket = Ticket(context.client, index, copies, tokens * copies, request_id, time.monotonic())
        # The first prompt takes the place of the sequence that its request began with.
        more = copies if context.entered.tickets else copies - context.sequences
        refusal = self._refusal(ticket, more, context.entered.tickets)
        if self._max_prompt_tokens is not None and tokens > self._max_prompt_tokens:
            # Begins like OpenAI's message, by which litellm recognizes this error.
            message = (
                f"This model's maximum context length is {self._max_prompt_tokens} tokens for a prompt on this server, and "
                f"the prompt has {tokens} tokens. Send a shorter prompt."
            )
            refusal = Refusal("prompt_tokens", 400, "context_length_exceeded", message, param="prompt")
        if refusal is not None:
            raise context.refuse(self._make_error(refusal), tokens)
        if context.sequences:  # 0 after the request's end, for a response in the background
            context.sequences += more
            self.sequences.add(ticket.client, more)
            self.tokens.add(ticket.client, ticket.tokens)
        self._wait(ticket, 1)
        self._tickets[id(ticket)] = ticket
        context.entered.tickets.append(ticket)

    def _refusal(self, ticket: Ticket, more: int, siblings: Sequence[Ticket]) -> Refusal | None:
        of_class = self.classes[ticket.index]
        for unit, shares, amount in (
            ("sequences", self.sequences, more),
            ("tokens", self.tokens, ticket.tokens),
            ("requests", of_class.requests, ticket.requests),
            ("tokens", of_class.tokens, ticket.tokens),
        ):
            if amount <= shares.room(ticket.client):
                continue
            counted = [each for each in (*siblings, ticket) if not shares.weight or each.index == ticket.index]
            whole = sum(each.tokens if unit == "tokens" else each.requests for each in counted)
            if whole > shares.most:
                most = f"the {shares.most} that one client may have at once ({shares.flag} {shares.limit})"
                message = f"prompt: {whole} {unit}, counting prompts times n, exceed {most}. Send smaller requests."
                return invalid_body(message, "prompt")
            if not shares.weight:
                return _too_many(unit, amount, ticket.client, shares)
            # A place may be free when the oldest prompt has waited as long again.
            since = next(each.since for each in self._tickets.values() if each.index == ticket.index)
            retry_after = min(60, max(1, math.ceil(time.monotonic() - since)))
            reason: Reason = "queue_tokens" if unit == "tokens" else "queue_requests"
            return no_room(reason, "queue_full", shares, f"{unit} of length class {of_class.name!r} wait", retry_after)
        return None

    def look(self) -> None:
        """Release prompts that have been computed, or that the engine client no longer knows."""
        for ticket in list(self._tickets.values()):
            waits = self._waits(ticket.request_id)
            if waits:
                ticket.seen = True
            elif waits is False or ticket.seen:
                self._release(ticket)

    def end(self, context: RequestContext) -> None:
        """Count a request as ended: answered, or its client has disconnected; prompts still in the engine wait on."""
        tickets = context.entered.tickets
        self.sequences.add(context.client, -context.sequences)
        self.tokens.add(context.client, -sum(each.tokens for each in tickets))
        context.sequences = 0
        for ticket in tickets:
            if self._waits(ticket.request_id):
                ticket.seen = True
            else:
                self._release(ticket)

    def _release(self, ticket: Ticket) -> None:
        if self._tickets.pop(id(ticket), None) is not None:
            self._wait(ticket, -1)

    def _wait(self, ticket: Ticket, sign: int) -> None:
        of_class = self.classes[ticket.index]
        of_class.requests.add(ticket.client, sign * ticket.requests)
        of_class.tokens.add(ticket.client, sign * ticket.tokens)

    async def watch(self, looked: Callable[[], None]) -> None:
        """Call :meth:`look` and then ``looked`` periodically, forever."""
        while True:
            self.look()
            looked()
            await asyncio.sleep(LOOK_SECONDS)


def _too_many(unit: str, more: int, client: bytes, shares: Shares) -> Refusal:
    message = f"{shares.flag}: this client has {shares.held[client]} of at most {shares.limit} {unit} in flight"
    message += f", which leaves no room for {more} more. Retry when a request has ended."
    return Refusal("key_concurrency", 429, "rate_limit_exceeded", message, retry_after=1)
