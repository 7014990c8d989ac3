"""Decides the factor set of a prompt, once, when the API server passes the prompt to the engine client.

The decision is stored in the request's context (``context.py``) and, for each sequence, in its ``Track``; header, queue
class, metrics, access log and traces read it there. Only the set of a decoding sequence is derived again: the engine
chooses it by the sequence's current length and does not report it, so :meth:`PromptSet.index_at` repeats that decision by
the same rule.
"""

from dataclasses import dataclass, field
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.model_patches.switch.config.settings import BY_LENGTH, FORCED_SET, LADDER_POLICY, POLICIES, RESERVE
from ropeswitch.model_patches.switch.placement import SetRule, forced_set, set_for
from ropeswitch.model_patches.switch.placement import asked_policy as asked_policy_of

# How a request's set was chosen: by a ladder policy, or forced by the request.
FORCED = "forced"
CHOSEN_BY = (*POLICIES, FORCED)
# Fields of a body that limit the output tokens; ``sampling_params`` may have the first of them too.
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True)
class PromptSet:
    """The decision for one prompt.

    Attributes:
        index: The index of its factor set.
        length_class: The index of its set by length alone; the last one for a prompt that is longer than the ladder and asks
            for a set by name.
        forced: The name of the set that the request asks for, or None.
        policy: The ladder policy that chose the set if none is forced.
        name: The name of its factor set.
    """

    index: int
    length_class: int
    forced: str | None = None
    policy: str = BY_LENGTH
    name: str = field(default="", compare=False)

    @property
    def chosen_by(self) -> str:
        """One of :data:`CHOSEN_BY`."""
        return self.policy if self.forced is None else FORCED

    def index_at(self, ladder: FactorLadder, length: int) -> int:
        """Return the index of the sequence's set once it has ``length`` tokens."""
        if self.forced is not None:
            return self.index
        by_length = set_for(ladder, min(length, ladder.max_length), None)
        return max(by_length, self.index) if self.policy == RESERVE else by_length


def decide(rule: SetRule, num_tokens: int, params: Any, alias: str | None = None) -> PromptSet:
    """Decide a prompt's set.

    Args:
        rule: The rule by which the engine chooses the set.
        num_tokens: The prompt's length.
        params: ``vllm.SamplingParams``, ``BeamSearchParams`` or ``PoolingParams``.
        alias: The set that the request's model name asks for, or None (``aliases.py``).

    Raises:
        FactorError: when the requested set or policy is unknown, or the prompt is longer than the ladder.
    """
    forced = forced_set(params) if alias is None else alias
    if alias is not None and (asked := asked_policy_of(params)) is not None:
        raise FactorError(
            f"vllm_xargs.{LADDER_POLICY}: {asked!r} cannot be combined with a model name that forces a set; leave one out"
        )
    index = rule.index(params, num_tokens, num_tokens) if alias is None else set_for(rule.ladder, num_tokens, alias)
    by_length = set_for(rule.ladder, min(num_tokens, rule.ladder.max_length), None)
    policy = BY_LENGTH if forced is not None else rule.policy_of(params)
    return PromptSet(index, by_length, forced, policy, rule.ladder.names[index])


def asks_for_set(params: Any) -> bool:
    """Whether ``vllm.SamplingParams`` ask for a set; pooling ones never do."""
    return (getattr(params, "extra_args", None) or {}).get(FORCED_SET) is not None


def asks_for_policy(params: Any) -> bool:
    """Whether ``vllm.SamplingParams`` choose a ladder policy; pooling ones never do."""
    return (getattr(params, "extra_args", None) or {}).get(LADDER_POLICY) is not None


def _asked_value(body: object, field: str) -> object:
    """Return the value of a field of ``vllm_xargs`` in a request's JSON body, or None.

    The route's own validation checks its type.
    """
    values = body.get("vllm_xargs") if isinstance(body, dict) else None
    return values.get(field) if isinstance(values, dict) else None


def asked_set(body: object) -> object:
    """Return the value of ``vllm_xargs.rope_factor_set`` in a request's JSON body, or None."""
    return _asked_value(body, FORCED_SET)


def asked_policy(body: object) -> object:
    """Return the value of ``vllm_xargs.rope_ladder_policy`` in a request's JSON body, or None."""
    return _asked_value(body, LADDER_POLICY)


def asks_for_no_token(body: object) -> bool:
    """Whether a request's JSON body limits its output to 0 tokens, which no route accepts."""
    return isinstance(body, dict) and any(body.get(name) == 0 for name in _LIMITS)


def names_output_limit(body: object) -> bool:
    """Whether a request's JSON body limits its output tokens."""
    if not isinstance(body, dict):
        return False
    inner = body.get("sampling_params")
    return any(body.get(name) is not None for name in _LIMITS) or (
        isinstance(inner, dict) and inner.get(_LIMITS[0]) is not None
    )
