"""Prompts at the engine's door: too long ones and those of a full length class are refused.

Called where ``engine_prompts.py`` sees each prompt, after its factor set was decided: it is then known to fit the ladder.
"""

from collections.abc import Callable

from ropeswitch.server.front.queue_limits import QueueLimits
from ropeswitch.server.front.refusal import Refusal, prompt_too_long, refused
from ropeswitch.server.front.request import FrontRequest, current_request


class Admission:
    """What an API server process lets into its engine.

    Args:
        queue: The limits of each length class.
        max_prompt_tokens: The longest prompt that is taken, None for as long as the model takes.
        make_error: Makes an error of a message and an HTTP status that vLLM's app answers with that status.
    """

    def __init__(
        self, queue: QueueLimits, max_prompt_tokens: int | None, make_error: Callable[[str, int], Exception]
    ) -> None:
        self._queue = queue
        self._max_prompt_tokens = max_prompt_tokens
        self._make_error = make_error

    def admit(self, tokens: int, copies: int, request_id: str | None) -> None:
        """Let a prompt of the HTTP request in hand wait for the engine; one of the server's own making is not counted.

        Args:
            tokens: Its length.
            copies: How many answers it is to have.
            request_id: The ID that it goes into the engine under, None where that is made later (:meth:`follow`).

        Raises:
            Exception: what ``make_error`` makes, when it is refused.
        """
        request = current_request.get()
        if request is None:
            return
        if self._max_prompt_tokens is not None and tokens > self._max_prompt_tokens:
            self._refuse(request, prompt_too_long(tokens, self._max_prompt_tokens), tokens)
        outcome = self._queue.admit(tokens, copies, request_id, request.tickets)
        if isinstance(outcome, Refusal):
            self._refuse(request, outcome, tokens)
        else:
            request.tickets.append(outcome)

    def follow(self, request_id: str) -> None:
        """A handler that gives the engine a prompt in steps of its own has come to the first of them."""
        request = current_request.get()
        for ticket in request.tickets if request is not None else ():
            if ticket.request_id is None:
                ticket.request_id = request_id
                return

    def _refuse(self, request: FrontRequest, refusal: Refusal, tokens: int) -> None:
        request.refusal = refusal
        refused(refusal.reason, tokens)
        raise self._make_error(refusal.message, refusal.status)
