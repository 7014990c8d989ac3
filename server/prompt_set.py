"""Decides the factor set of a prompt, once in the API server, when the prompt is given to the engine client.

The decision is carried in the request's context (``context.py``) and, for each sequence, in its ``Track``: header, queue
class, metrics, access log and traces read it there. Only the set of a sequence that grows while it decodes is derived
again, by the same rule: the engine decides it by the sequence's current length and does not report it, and
:meth:`PromptSet.index_at` repeats that decision.
"""

from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.request_set import forced_set, set_for
from ropeswitch.model_patches.switch.settings import FORCED_SET


@dataclass(frozen=True)
class PromptSet:
    """The decision for one prompt.

    Attributes:
        index: Its factor set, by its place in the ladder.
        length_class: The set by length alone; the last one for a prompt that is longer than the ladder and asks for a set by
            name.
        forced: The name of the set that the request asks for, or None.
    """

    index: int
    length_class: int
    forced: str | None = None

    def index_at(self, ladder: FactorLadder, length: int) -> int:
        """The set of the sequence once it has ``length`` tokens."""
        return self.index if self.forced is not None else set_for(ladder, min(length, ladder.max_length), None)


def decide(ladder: FactorLadder, num_tokens: int, params: Any, alias: str | None = None) -> PromptSet:
    """Decide a prompt's set.

    Args:
        ladder: The ladder that the engine runs.
        num_tokens: The prompt's length.
        params: ``vllm.SamplingParams`` or ``vllm.PoolingParams``.
        alias: The set that the request's model name asks for, or None (``aliases.py``).

    Raises:
        FactorError: when the requested name is unknown or not a name, or the prompt is longer than the ladder.
    """
    forced = forced_set(params) if alias is None else alias
    index = set_for(ladder, num_tokens, forced)
    by_length = index if forced is None else set_for(ladder, min(num_tokens, ladder.max_length), None)
    return PromptSet(index, by_length, forced)


def asks_for_set(params: Any) -> bool:
    """Whether ``vllm.SamplingParams`` ask for a set; pooling ones never do."""
    return (getattr(params, "extra_args", None) or {}).get(FORCED_SET) is not None


def asked_set(body: object) -> object:
    """The value of ``vllm_xargs.rope_factor_set`` in a request's JSON body, or None.

    The route's own validation checks its type.
    """
    values = body.get("vllm_xargs") if isinstance(body, dict) else None
    return values.get(FORCED_SET) if isinstance(values, dict) else None
