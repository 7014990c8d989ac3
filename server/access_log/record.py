"""What is noted of the HTTP request in hand, for its line in the access log.

It is in a context variable: what runs for a request, in handlers and the tasks they start, notes it here and nowhere else.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ropeswitch.server.length_metrics.track import Track
from ropeswitch.server.prompt_log import current_log


@dataclass
class RequestRecord:
    """One HTTP request.

    Attributes:
        keeps_prompts: Whether its prompts are to be logged.
        sequences: What it was given to an engine as.
        prompts: Text or token IDs of its prompts, by the ID that each had; empty unless they are kept.
        reason: Why the front refused it, or None.
        refused_tokens: The length of the prompt that was refused, None where it was not counted.
    """

    keeps_prompts: bool = False
    sequences: list[Track] = field(default_factory=list)
    prompts: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    refused_tokens: int | None = None

    def add(self, track: Track, state: Any) -> None:
        """Note a sequence that is given to an engine.

        Args:
            track: What will be known of it.
            state: ``vllm.v1.engine.output_processor.RequestState``.
        """
        self.sequences.append(track)
        if not self.keeps_prompts:
            return
        log = current_log.get()
        # Of an answer in many steps, whose prompts grow from the first one, that one is enough.
        if log is None or not log.complete or not self.prompts:
            self.prompts[track.request_id] = state.prompt_token_ids if state.prompt is None else state.prompt


current_record: ContextVar[RequestRecord | None] = ContextVar("ropeswitch_access_record", default=None)


def note_refusal(reason: str, tokens: int | None) -> None:
    """A listener of ``front.refusal``."""
    if (record := current_record.get()) is not None:
        record.reason, record.refused_tokens = reason, tokens
