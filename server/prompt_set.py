"""The factor set of one prompt: decided once in the API server, when the prompt is given to the engine client.

The decision travels in the request's context (``context.py``) and, for each sequence, in its ``Track``: header, queue class,
metrics, access log and traces read it there. One thing is worked out again, by the same rule: the set of a sequence that
grows while it decodes. The engine decides that by the sequence's present length, for that is what keeps its keys exact, and
does not report it; :meth:`PromptSet.index_at` follows.
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
        length_class: The set that its length alone would give it; the last for a prompt longer than the ladder, which has
            asked for a set by name.
        forced: The name of the set that it asks for, or None.
    """

    index: int
    length_class: int
    forced: str | None = None

    def index_at(self, ladder: FactorLadder, length: int) -> int:
        """The set of the same sequence when it has ``length`` tokens."""
        return self.index if self.forced is not None else set_for(ladder, min(length, ladder.max_length), None)


def decide(ladder: FactorLadder, num_tokens: int, params: Any) -> PromptSet:
    """Decide a prompt's set.

    Args:
        ladder: The ladder that the engine runs.
        num_tokens: The prompt's length.
        params: ``vllm.SamplingParams`` or ``vllm.PoolingParams``.

    Raises:
        FactorError: when the name that it asks for is unknown or no name, or the prompt is longer than the ladder.
    """
    forced = forced_set(params)
    index = set_for(ladder, num_tokens, forced)
    by_length = index if forced is None else set_for(ladder, min(num_tokens, ladder.max_length), None)
    return PromptSet(index, by_length, forced)


def asks_for_set(params: Any) -> bool:
    """Whether ``vllm.SamplingParams`` ask for a set; pooling ones never do."""
    return (getattr(params, "extra_args", None) or {}).get(FORCED_SET) is not None


def asked_set(body: object) -> object:
    """The value of ``vllm_xargs.rope_factor_set`` in the values of a request's JSON body, or None.

    Whether it has the right type is for the route's own validation to say.
    """
    values = body.get("vllm_xargs") if isinstance(body, dict) else None
    return values.get(FORCED_SET) if isinstance(values, dict) else None
