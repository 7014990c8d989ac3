"""How many requests, and how many of their tokens, may wait for their first token in each length class.

The classes are the ladder's factor sets: a prompt is in the class of the first set that is long enough for it. Each has
limits of its own, so that short prompts are taken however many long ones wait. A prompt waits from the moment that it is
given to the engine client until it is computed; the client is asked then, and where a prompt would be refused.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ropeswitch.server.context import Ticket, current
from ropeswitch.server.front.refusal import Refusal, RefusedError, prompt_too_long, queue_full
from ropeswitch.server.front.shared_counts import SharedCounts

# Seconds between two looks at which prompts still wait, for other processes that count them too.
LOOK_SECONDS = 0.25
_LONGEST_RETRY = 60

# Tells of the ID of a request whether its prompt is still to be computed; None where the engine client does not know it.
Waits = Callable[[str], bool | None]


@dataclass(frozen=True)
class LengthClass:
    """The prompts of one factor set.

    Attributes:
        name: The set's name.
        max_length: Its longest prompt in tokens.
        max_requests: How many may wait.
        max_tokens: How many tokens they may have together.
    """

    name: str
    max_length: int
    max_requests: int
    max_tokens: int


class QueueLimits:
    """The prompts that wait in this process, and the limits that all processes share.

    Args:
        classes: By ``max_length``, shortest first.
        counts: The shared counts.
        waits: See :data:`Waits`.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        classes: Sequence[LengthClass],
        counts: SharedCounts,
        waits: Waits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.classes = tuple(classes)
        self._counts = counts
        self._waits = waits
        self._clock = clock
        # In the order in which they came.
        self._tickets: dict[int, Ticket] = {}

    def admit(
        self, tokens: int, index: int, copies: int, request_id: str | None, siblings: Sequence[Ticket]
    ) -> Ticket | Refusal:
        """Have a prompt wait, unless its class is full.

        A prompt is taken wherever nothing waits but prompts of its own HTTP request: whoever may send it at all must not be
        told for ever to try again.

        Args:
            tokens: The prompt's length.
            index: Its length class, by its place in :attr:`classes`.
            copies: How many answers it is to have.
            request_id: See :class:`Ticket`.
            siblings: The tickets of other prompts of the same HTTP request.
        """
        ticket = Ticket(index, copies, tokens * copies, request_id, self._clock())
        if (refusal := self._add(ticket, siblings)) is not None:
            self.look()
            refusal = self._add(ticket, siblings)
        if refusal is not None:
            return refusal
        self._tickets[id(ticket)] = ticket
        return ticket

    def _add(self, ticket: Ticket, siblings: Sequence[Ticket]) -> Refusal | None:
        limits, whole = self.classes[ticket.index], self._counts.whole
        own = sum(each.requests for each in siblings if each.index == ticket.index and not each.released)
        with self._counts.locked():
            at = self._counts.of_class(ticket.index)
            if whole[at] > own:
                if whole[at] + ticket.requests > limits.max_requests:
                    return queue_full(limits.name, "requests", limits.max_requests, self._retry_after(ticket.index))
                if whole[at + 1] + ticket.tokens > limits.max_tokens:
                    return queue_full(limits.name, "tokens", limits.max_tokens, self._retry_after(ticket.index))
            whole[at] += ticket.requests
            whole[at + 1] += ticket.tokens
        return None

    def _retry_after(self, index: int) -> int:
        """As long as the first in the queue has waited, its turn is a fair guess at the next one's; in whole seconds."""
        since = next((each.since for each in self._tickets.values() if each.index == index), self._clock())
        return min(_LONGEST_RETRY, max(1, math.ceil(self._clock() - since)))

    def look(self) -> None:
        """Release the prompts of this process that have been computed, and those that the engine client gave up."""
        for ticket in list(self._tickets.values()):
            waits = None if ticket.request_id is None else self._waits(ticket.request_id)
            if waits:
                ticket.seen = True
            elif waits is False or ticket.seen:
                self._release(ticket)

    def settle(self, tickets: Sequence[Ticket]) -> None:
        """An HTTP request has ended: release its prompts, but for those that go on in the engine.

        What it gave up before it reached the engine has no other end than this.
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
        with self._counts.locked():
            at = self._counts.of_class(ticket.index)
            self._counts.whole[at] -= ticket.requests
            self._counts.whole[at + 1] -= ticket.tokens

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def waiting(self, index: int) -> tuple[int, int]:
        """How many requests and tokens wait in a class, in all processes."""
        with self._counts.locked():
            at = self._counts.of_class(index)
            return self._counts.whole[at], self._counts.whole[at + 1]


class Admission:
    """What an API server process lets into its engine.

    Args:
        queue: The limits of each length class.
        max_prompt_tokens: The longest prompt that is taken, None for as long as the model takes.
        make_error: Makes the error of a refusal that vLLM's handlers answer with its status.
    """

    def __init__(
        self, queue: QueueLimits, max_prompt_tokens: int | None, make_error: Callable[[Refusal], RefusedError]
    ) -> None:
        self._queue = queue
        self._max_prompt_tokens = max_prompt_tokens
        self._make_error = make_error

    def admit(self, tokens: int, length_class: int, copies: int, request_id: str | None) -> None:
        """Let a prompt of the HTTP request in hand wait for the engine; one of the server's own making is not counted.

        Args:
            tokens: Its length.
            length_class: :attr:`~ropeswitch.server.prompt_set.PromptSet.length_class`.
            copies: How many answers it is to have.
            request_id: The ID that it goes into the engine under, None where that is made later (:meth:`follow`).

        Raises:
            RefusedError: when it is refused.
        """
        context = current.get()
        if context is None:
            return
        if self._max_prompt_tokens is not None and tokens > self._max_prompt_tokens:
            raise context.refuse(self._make_error(prompt_too_long(tokens, self._max_prompt_tokens)), tokens)
        outcome = self._queue.admit(tokens, length_class, copies, request_id, context.tickets)
        if isinstance(outcome, Refusal):
            raise context.refuse(self._make_error(outcome), tokens)
        context.tickets.append(outcome)

    def follow(self, request_id: str) -> None:
        """A handler that gives the engine a prompt in steps of its own has come to the first of them."""
        context = current.get()
        for ticket in context.tickets if context is not None else ():
            if ticket.request_id is None:
                ticket.request_id = request_id
                return
