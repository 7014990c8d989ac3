"""Decides which factor set a request is in; no other module does.

A request's set is stored on vLLM's ``Request`` object as ``rope_set`` (an index into the ladder), because the scheduler, the
block hasher and the preemption path all hold the request. Its
``cache_salt`` identifies the set too: vLLM puts the salt into the hash of block 0, hashes chain, and KV events and
connectors that key by tokens carry it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.model_patches.switch.config.settings import (
    ANSWER_LIMIT,
    ANSWER_LIMIT_FIELD,
    BY_LENGTH,
    FORCED_SET,
    LADDER_POLICY,
    POLICIES,
    RESERVE,
    RopeSettings,
)
from ropeswitch.model_patches.switch.set_keys import client_part, salt_of, set_keys


def set_for(ladder: FactorLadder, num_tokens: int, forced: str | None) -> int:
    """Return the index of the set for ``num_tokens`` tokens: the forced one, else the first that is long enough.

    Raises:
        FactorError: when the forced name is unknown or the sequence is longer than the ladder.
    """
    return ladder.index_for(num_tokens) if forced is None else ladder.index_of(forced)


def forced_set(params: Any) -> str | None:
    """Return the name of the set that a request forces, or None.

    Args:
        params: ``vllm.SamplingParams``, with the name in ``extra_args`` (``vllm_xargs`` over HTTP), or
            ``vllm.PoolingParams``, with the name in ``extra_kwargs``.

    Raises:
        FactorError: when the value is not a string.
    """
    extra = getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}
    name = extra.get(FORCED_SET)
    if name is not None and not isinstance(name, str):
        raise FactorError(f"vllm_xargs.{FORCED_SET}: {name!r} must be the name of a factor set")
    return name


def params_of(request: Any) -> Any:
    """Return the ``SamplingParams`` or ``PoolingParams`` of a ``vllm.v1.request.Request``."""
    return request.pooling_params if request.sampling_params is None else request.sampling_params


def forced_set_of(request: Any) -> str | None:
    """Return the name of the set that a ``vllm.v1.request.Request`` forces, or None."""
    return forced_set(params_of(request))


def asked_policy(sampling_params: Any) -> str | None:
    """Return the ladder policy that a request chooses in ``vllm_xargs``, or None.

    Raises:
        FactorError: for an unknown policy, or when the request also forces a set, which leaves nothing to choose.
    """
    extra = getattr(sampling_params, "extra_args", None) or {}
    policy = extra.get(LADDER_POLICY)
    field = f"vllm_xargs.{LADDER_POLICY}"
    if policy is None:
        return None
    if policy not in POLICIES:
        raise FactorError(f"{field}: {policy!r} must be one of {', '.join(POLICIES)}")
    if extra.get(FORCED_SET) is not None:
        raise FactorError(
            f"{field}: {policy!r} cannot be combined with vllm_xargs.{FORCED_SET}, which keeps the request in one set; "
            "leave one of the two out"
        )
    return str(policy)


def answer_limit(sampling_params: Any) -> int:
    """Return a request's output limit in tokens; for a prompt prefilled for a decode engine, the limit there.

    Raises:
        FactorError: when the proxy's value for the latter (:data:`ANSWER_LIMIT`) is not a number of tokens above 0.
    """
    transfer = (getattr(sampling_params, "extra_args", None) or {}).get("kv_transfer_params")
    limit = transfer.get(ANSWER_LIMIT) if isinstance(transfer, Mapping) and transfer.get("do_remote_decode") else None
    if limit is None:
        return int(sampling_params.max_tokens)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise FactorError(f"{ANSWER_LIMIT_FIELD}: {limit!r} must be a number of tokens above 0")
    return limit


@dataclass(frozen=True)
class SetRule:
    """How an engine chooses the set of a request.

    Attributes:
        ladder: The factor sets.
        policy: One of ``settings.POLICIES``, for requests that choose none.
        max_model_len: Maximum sequence length, in tokens.
    """

    ladder: FactorLadder
    policy: str = BY_LENGTH
    max_model_len: int | None = None

    def policy_of(self, sampling_params: Any) -> str:
        """Return a request's policy; ``length`` for pooling requests and those without an output limit.

        Raises:
            FactorError: see :func:`asked_policy`.
        """
        asked = asked_policy(sampling_params)
        if getattr(sampling_params, "max_tokens", None) is None:
            return BY_LENGTH
        return asked or self.policy

    def reserved_length(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Return the maximum length of a sequence with this prompt length and output limit, in tokens."""
        most = self.ladder.max_length if self.max_model_len is None else self.max_model_len
        return min(num_prompt_tokens + max_tokens, most)

    def index(self, sampling_params: Any, num_tokens: int, num_prompt_tokens: int) -> int:
        """Return the set for a sequence of ``num_tokens`` tokens, of which ``num_prompt_tokens`` are its prompt.

        Raises:
            FactorError: for an unknown set or policy, or a sequence longer than the ladder.
        """
        forced = forced_set(sampling_params)
        if self.policy_of(sampling_params) == RESERVE and forced is None:
            num_tokens = max(num_tokens, self.reserved_length(num_prompt_tokens, answer_limit(sampling_params)))
        return set_for(self.ladder, num_tokens, forced)


@dataclass(frozen=True, eq=False)
class EngineLadder:
    """The ladder of one engine.

    Attributes:
        rule: How it chooses a request's set.
        ends: The longest sequence of each set, in tokens.
        keys: The key of each set (:func:`~ropeswitch.model_patches.switch.set_keys.set_keys`).
    """

    rule: SetRule
    ends: tuple[int, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, settings: RopeSettings, max_model_len: int | None) -> "EngineLadder":
        """Return an engine's ladder; ``max_model_len`` is the longest sequence, in tokens."""
        rule = SetRule(settings.ladder, settings.policy, max_model_len)
        return cls(rule, tuple(each.max_length for each in settings.ladder.sets), set_keys(settings))


def go_by_length(sampling_params: Any) -> None:
    """Set the policy of a request without an output limit to ``length``, unless it forces a set."""
    if forced_set(sampling_params) is None:
        sampling_params.extra_args = (sampling_params.extra_args or {}) | {LADDER_POLICY: BY_LENGTH}


def wanted_set(request: Any, rule: SetRule) -> int:
    """Return the set that a ``vllm.v1.request.Request`` must be in at its current length.

    Raises:
        FactorError: for an unknown set or policy, or a request longer than the ladder.
    """
    params = params_of(request)
    index = rule.index(params, request.num_tokens, request.num_prompt_tokens)
    if forced_set(params) is None and rule.policy_of(params) == RESERVE:
        # A streaming session's next chunk may reserve less than the last; moving down would recompute the session.
        return max(index, assigned_set(request))
    return index


def assigned_set(request: Any) -> int:
    """Return the set that a request's cached keys and block hashes are in; 0 before one is assigned."""
    return getattr(request, "rope_set", 0)


def client_salt(request: Any) -> str | None:
    """Return the ``cache_salt`` that the client sent, or None."""
    salt: str | None = request.cache_salt
    return client_part(salt or "") if hasattr(request, "rope_set") else salt


def place(request: Any, index: int, keys: Sequence[str]) -> None:
    """Put a request whose blocks are not hashed yet into set ``index``.

    Args:
        request: ``vllm.v1.request.Request``.
        index: Index of the set.
        keys: The key of each set (:func:`~ropeswitch.model_patches.switch.set_keys.set_keys`).
    """
    request.cache_salt = salt_of(keys[index], client_salt(request))
    request.rope_set = index


def assign(request: Any, index: int, keys: Sequence[str]) -> None:
    """Move a request that holds no KV blocks into set ``index`` and rehash its blocks; arguments as in :func:`place`."""
    place(request, index, keys)
    if request.block_hashes:
        request.block_hashes.clear()
        request.update_block_hashes()
