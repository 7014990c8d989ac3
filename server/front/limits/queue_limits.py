"""Limits the requests and prompt tokens that wait for their first token in each length class.

A prompt is in the class of the first factor set that is long enough for it, so short prompts are accepted however many long
ones wait. It waits from the time it is given to the engine client until it is computed; the client is polled for that, and
again before a prompt is refused. Each API server process counts its own prompts.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ropeswitch.server.front.context import Ticket, current
from ropeswitch.server.front.refusal import Refusal, RefusedError, prompt_too_long, queue_full

# Seconds between two polls for the prompts that still wait; the gauges are as old.
LOOK_SECONDS = 0.25

# Whether the prompt of a request ID is still to be computed; None if the engine client does not know the ID.
Waits = Callable[[str], bool | None]


@dataclass(frozen=True)
class LengthClass:
    """The name of a factor set, and the maximum waiting requests and total tokens of its prompts."""

    name: str
    max_requests: int
    max_tokens: int


class Admission:
    """Admits prompts to the engine, and counts those that wait; used only on the event loop.

    Args:
        classes: By their place in the ladder.
        max_prompt_tokens: Maximum tokens of a prompt; None for the model's limit.
        make_error: Makes the error for a refusal; vLLM's handlers answer it with the refusal's status.
    """

    def __init__(
        self,
        classes: Sequence[LengthClass],
        waits: Waits,
        max_prompt_tokens: int | None = None,
        make_error: Callable[[Refusal], RefusedError] = RefusedError,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.classes = tuple(classes)
        self._waits, self._clock = waits, clock
        self._max_prompt_tokens, self._make_error = max_prompt_tokens, make_error
        # In order of arrival.
        self._tickets: dict[int, Ticket] = {}
        self._requests, self._tokens = [0] * len(self.classes), [0] * len(self.classes)

    def admit(self, tokens: int, index: int, copies: int, request_id: str) -> None:
        """Count a prompt of the current HTTP request, in length class ``index``, as waiting for ``copies`` answers.

        Raises RefusedError for a prompt that is too long, or if its class is full. The server's own prompts are not counted.
        """
        if (context := current.get()) is None:
            return
        if self._max_prompt_tokens is not None and tokens > self._max_prompt_tokens:
            outcome: Ticket | Refusal = prompt_too_long(tokens, self._max_prompt_tokens)
        else:
            outcome = self.add(tokens, index, copies, request_id, context.entered.tickets)
        if isinstance(outcome, Refusal):
            raise context.refuse(self._make_error(outcome), tokens)
        context.entered.tickets.append(outcome)

    def add(
        self, tokens: int, index: int, copies: int, request_id: str, siblings: Sequence[Ticket]
    ) -> Ticket | Refusal:
        """Count a prompt as waiting, or return a refusal if its class is full; ``siblings`` are of the same HTTP request.

        A prompt is always accepted if only siblings wait. Otherwise a request larger than the limit could never succeed.
        """
        ticket = Ticket(index, copies, tokens * copies, request_id, self._clock())
        if self._refusal(ticket, siblings) is not None:
            self.look()
        if (refusal := self._refusal(ticket, siblings)) is not None:
            return refusal
        self._tickets[id(ticket)] = ticket
        self._count(ticket, 1)
        return ticket

    def _refusal(self, ticket: Ticket, siblings: Sequence[Ticket]) -> Refusal | None:
        index, limits = ticket.index, self.classes[ticket.index]
        requests, tokens = self.waiting(index)
        if requests > sum(each.requests for each in siblings if each.index == index and not each.released):
            # A place may be free when the oldest prompt has waited as long again.
            since = next(each.since for each in self._tickets.values() if each.index == index)
            retry = min(60, max(1, math.ceil(self._clock() - since)))
            if requests + ticket.requests > limits.max_requests:
                return queue_full(limits.name, "requests", limits.max_requests, retry)
            if tokens + ticket.tokens > limits.max_tokens:
                return queue_full(limits.name, "tokens", limits.max_tokens, retry)
        return None

    def look(self) -> None:
        """Release prompts that have been computed, or that the engine client no longer knows."""
        for ticket in list(self._tickets.values()):
            waits = self._waits(ticket.request_id)
            if waits:
                ticket.seen = True
            elif waits is False or ticket.seen:
                self._release(ticket)

    def settle(self, tickets: Sequence[Ticket]) -> None:
        """Release the prompts of an HTTP request that has ended, except those still waiting in the engine."""
        for ticket in tickets:
            if self._waits(ticket.request_id):
                ticket.seen = True
            else:
                self._release(ticket)

    def _release(self, ticket: Ticket) -> None:
        if self._tickets.pop(id(ticket), None) is not None:
            ticket.released = True
            self._count(ticket, -1)

    def _count(self, ticket: Ticket, sign: int) -> None:
        self._requests[ticket.index] += sign * ticket.requests
        self._tokens[ticket.index] += sign * ticket.tokens

    async def watch(self, looked: Callable[[], None]) -> None:
        """Call :meth:`look` and then ``looked`` periodically, forever."""
        while True:
            self.look()
            looked()
            await asyncio.sleep(LOOK_SECONDS)

    def waiting(self, index: int) -> tuple[int, int]:
        """Return the numbers of waiting requests and tokens of a class."""
        return self._requests[index], self._tokens[index]
