"""Prompts at the engine's door: too long ones and those of a full length class are refused.

Called where ``engine_prompts.py`` sees each prompt, after its factor set was decided: it is then known to fit the ladder.
"""

from collections.abc import Callable

from ropeswitch.server.context import current
from ropeswitch.server.front.queue_limits import QueueLimits
from ropeswitch.server.front.refusal import Refusal, RefusedError, prompt_too_long


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
