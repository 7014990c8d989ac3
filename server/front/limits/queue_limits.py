"""Limits the requests and prompt tokens that wait for their first token in each length class.

The classes are the ladder's factor sets: a prompt is in the class of the first set that is long enough for it. Each has
its own limits, so that short prompts are accepted however many long ones wait. A prompt waits from the time it is given to
the engine client until it is computed. The engine client is polled for that, and again before a prompt is refused. Each
API server process counts its own prompts.
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
_LONGEST_RETRY = 60

# Whether the prompt of a request ID is still to be computed; None if the engine client does not know the ID.
Waits = Callable[[str], bool | None]


@dataclass(frozen=True)
class LengthClass:
    """The prompts of one factor set.

    Attributes:
        name: The set's name.
        max_requests: Maximum waiting requests.
        max_tokens: Maximum tokens of all waiting prompts.
    """

    name: str
    max_requests: int
    max_tokens: int


class QueueLimits:
    """The waiting prompts of this process, and their limits; used only on the event loop.

    Args:
        classes: By their place in the ladder.
        waits: See :data:`Waits`.
        clock: Monotonic seconds.
    """

    def __init__(
        self, classes: Sequence[LengthClass], waits: Waits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.classes = tuple(classes)
        self._waits = waits
        self._clock = clock
        self._requests = [0] * len(self.classes)
        self._tokens = [0] * len(self.classes)
        # In order of arrival.
        self._tickets: dict[int, Ticket] = {}

    def admit(
        self, tokens: int, index: int, copies: int, request_id: str | None, siblings: Sequence[Ticket]
    ) -> Ticket | Refusal:
        """Count a prompt as waiting, or return a refusal if its class is full.

        A prompt is always accepted if only prompts of its own HTTP request wait. Otherwise a request larger than the limit
        could never succeed.

        Args:
            tokens: The prompt's length.
            index: Its length class, by its place in :attr:`classes`.
            copies: Number of answers to generate.
            request_id: See :class:`Ticket`.
            siblings: The tickets of other prompts of the same HTTP request.
        """
        ticket = Ticket(index, copies, tokens * copies, request_id, self._clock())
        if self._refusal(ticket, siblings) is not None:
            self.look()
        if (refusal := self._refusal(ticket, siblings)) is not None:
            return refusal
        self._requests[index] += ticket.requests
        self._tokens[index] += ticket.tokens
        self._tickets[id(ticket)] = ticket
        return ticket

    def _refusal(self, ticket: Ticket, siblings: Sequence[Ticket]) -> Refusal | None:
        index, limits = ticket.index, self.classes[ticket.index]
        own = sum(each.requests for each in siblings if each.index == index and not each.released)
        if self._requests[index] > own:
            if self._requests[index] + ticket.requests > limits.max_requests:
                return queue_full(limits.name, "requests", limits.max_requests, self._retry_after(index))
            if self._tokens[index] + ticket.tokens > limits.max_tokens:
                return queue_full(limits.name, "tokens", limits.max_tokens, self._retry_after(index))
        return None

    def _retry_after(self, index: int) -> int:
        """Return the estimated whole seconds until a place is free: the time that the oldest prompt has waited."""
        since = next((each.since for each in self._tickets.values() if each.index == index), self._clock())
        return min(_LONGEST_RETRY, max(1, math.ceil(self._clock() - since)))

    def look(self) -> None:
        """Release prompts that have been computed, or that the engine client no longer knows."""
        for ticket in list(self._tickets.values()):
            waits = None if ticket.request_id is None else self._waits(ticket.request_id)
            if waits:
                ticket.seen = True
            elif waits is False or ticket.seen:
                self._release(ticket)

    def settle(self, tickets: Sequence[Ticket]) -> None:
        """Release the prompts of an HTTP request that has ended, except those still waiting in the engine.

        Prompts that never reached the engine are released only here.
        """
        for ticket in tickets:
            if ticket.request_id is None or not self._waits(ticket.request_id):
                self._release(ticket)
            else:
                ticket.seen = True

    def _release(self, ticket: Ticket) -> None:
        if ticket.released:
            return
        ticket.released = True
        del self._tickets[id(ticket)]
        self._requests[ticket.index] -= ticket.requests
        self._tokens[ticket.index] -= ticket.tokens

    async def watch(self, looked: Callable[[], None]) -> None:
        """Call :meth:`look` and then ``looked`` periodically, forever."""
        while True:
            self.look()
            looked()
            await asyncio.sleep(LOOK_SECONDS)

    def waiting(self, index: int) -> tuple[int, int]:
        """Return the numbers of waiting requests and tokens of a class."""
        return self._requests[index], self._tokens[index]


class Admission:
    """Admits prompts to the engine of an API server process.

    Args:
        queue: The limits of each length class.
        max_prompt_tokens: Maximum tokens of a prompt; None for the model's limit.
        make_error: Makes the error for a refusal; vLLM's handlers answer it with the refusal's status.
    """

    def __init__(
        self, queue: QueueLimits, max_prompt_tokens: int | None, make_error: Callable[[Refusal], RefusedError]
    ) -> None:
        self._queue = queue
        self._max_prompt_tokens = max_prompt_tokens
        self._make_error = make_error

    def admit(self, tokens: int, length_class: int, copies: int, request_id: str | None) -> None:
        """Count a prompt of the current HTTP request as waiting; the server's own prompts are not counted.

        Args:
            tokens: The prompt's length.
            length_class: The index of its set by length alone; the last one for a prompt that is longer than the ladder.
            copies: Number of answers to generate.
            request_id: Its ID in the engine; None if that is assigned later (:meth:`follow`).

        Raises:
            RefusedError: when it is refused.
        """
        context = current.get()
        if context is None:
            return
        if self._max_prompt_tokens is not None and tokens > self._max_prompt_tokens:
            raise context.refuse(self._make_error(prompt_too_long(tokens, self._max_prompt_tokens)), tokens)
        outcome = self._queue.admit(tokens, length_class, copies, request_id, context.entered.tickets)
        if isinstance(outcome, Refusal):
            raise context.refuse(self._make_error(outcome), tokens)
        context.entered.tickets.append(outcome)

    def follow(self, request_id: str) -> None:
        """Set the engine ID of the current request's ticket, for a handler that runs the prompt in its own steps."""
        context = current.get()
        for ticket in context.entered.tickets if context is not None else ():
            if ticket.request_id is None:
                ticket.request_id = request_id
                return
