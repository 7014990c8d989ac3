"""Decides where a request is on the ladder: its factor set, and the salt that keeps sets apart. No other module does.

A :class:`Placement` is made by :func:`place` where a prompt enters an engine client: ``InputProcessor.process_inputs`` for
``vllm.LLM`` and ``vllm serve``; ``generate`` and ``encode`` of the engine client for ``ropeswitch serve``, whose headers
need it first. vLLM carries it to the engine: ``cache_salt`` is in the hash of block 0, hashes chain, and KV events and
connectors that key by tokens carry it; ``extra_args`` has the rest. A request that outgrows its set is placed again.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from ropeswitch.factors.errors import FieldError
from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.quoted import quoted
from ropeswitch.model_patches.switch.config.settings import (
    ANSWER_LIMIT,
    ANSWER_LIMIT_FIELD,
    BY_LENGTH,
    FORCED_SET,
    LADDER_POLICY,
    PLACEMENT,
    POLICIES,
    RESERVE,
    RopeSettings,
)
from ropeswitch.model_patches.switch.set_keys import set_keys

FORCED_FIELD = f"vllm_xargs.{FORCED_SET}"
POLICY_FIELD = f"vllm_xargs.{LADDER_POLICY}"
# How a request's set was chosen: by a ladder policy, or forced by the request.
FORCED = "forced"
CHOSEN_BY = (*POLICIES, FORCED)


@dataclass(frozen=True)
class EngineLadder:
    """The ladder of one engine."""

    sets: FactorLadder
    keys: tuple[str, ...]  # Of each set (`set_keys`).
    policy: str = BY_LENGTH  # One of `settings.POLICIES`, for requests that choose none.
    max_model_len: int | None = None  # Maximum sequence length, in tokens; None for the ladder's end.

    @classmethod
    def of(cls, settings: RopeSettings, max_model_len: int | None = None) -> "EngineLadder":
        """Return the ladder of an engine with these settings and this longest sequence, in tokens."""
        return cls(settings.ladder, set_keys(settings), settings.policy, max_model_len)

    def end(self, index: int) -> int:
        """Return the longest sequence of a set, in tokens."""
        return self.sets.sets[index].max_length


@dataclass(frozen=True)
class Placement:
    """Where a request is on the ladder."""

    index: int  # Of its factor set.
    name: str  # Of its factor set.
    salt: str  # Its `cache_salt`: that of the set and the client's own.
    policy: str = BY_LENGTH  # That chose the set if none is forced; `length` for a request without an output limit.
    forced: bool = False  # Whether the request asks for the set, and so keeps it at any length.
    limit: int | None = None  # Its output limit in tokens, None without one.
    client: str | None = None  # Whose request it is, for the scheduler's turns; None for no one's.

    @property
    def chosen_by(self) -> str:
        """One of :data:`CHOSEN_BY`."""
        return FORCED if self.forced else self.policy

    def carried_by(self, params: Any) -> Any:
        """Return a copy of ``SamplingParams`` or ``PoolingParams`` that carries this placement to the engine."""
        values = [self.index, self.name, self.policy, self.forced, self.limit, self.client]
        return with_extra(params, {PLACEMENT: values})

    def attach(self, request: Any) -> None:
        """Have an ``EngineCoreRequest`` or ``Request`` carry this placement in a copy of its parameters."""
        field = "pooling_params" if request.sampling_params is None else "sampling_params"
        setattr(request, field, self.carried_by(getattr(request, field)))

    def moved(self, ladder: EngineLadder, num_tokens: int, num_prompt_tokens: int) -> "Placement":
        """Return the placement of the same request at another length, in tokens, of which some are its prompt.

        Raises:
            FieldError: when the sequence is longer than the ladder.
        """
        forced, salt = self.name if self.forced else None, client_part(self.salt)
        placement = place(
            ladder, num_tokens, num_prompt_tokens=num_prompt_tokens, limit=self.limit, policy=self.policy, forced=forced,
            client_salt=salt,
        )  # fmt: skip
        return replace(placement, client=self.client)


def place(
    ladder: EngineLadder,
    num_tokens: int,
    *,
    num_prompt_tokens: int | None = None,
    limit: int | None = None,
    policy: str = BY_LENGTH,
    forced: str | None = None,
    client_salt: str | None = None,
) -> Placement:
    """Decide where a sequence of ``num_tokens`` tokens is on the ladder.

    Args:
        num_prompt_tokens: How many of them are its prompt (default: all).
        limit: Its output limit in tokens, None without one.
        policy: The ladder policy; ``reserve`` needs a limit, and is ``length`` without one.
        forced: The name of the set that the request asks for, or None.
        client_salt: The client's part of the salt: the ``cache_salt`` that it sent (:func:`shared_by`), or None.

    Raises:
        FieldError: for an unknown set, or a sequence longer than the ladder.
    """
    policy = policy if limit is not None and forced is None else BY_LENGTH
    length = num_tokens
    if policy == RESERVE and limit is not None:
        most = ladder.sets.max_length if ladder.max_model_len is None else ladder.max_model_len
        length = max(length, min((num_prompt_tokens or num_tokens) + limit, most))
    index = ladder.sets.index_for(length) if forced is None else named_set(ladder.sets.names, forced)
    salt = salt_of(ladder.keys[index], client_salt)
    return Placement(index, ladder.sets.names[index], salt, policy, forced is not None, limit)


def salt_of(key: str, client_salt: str | None) -> str:
    """Return the ``cache_salt`` of a request in the set with this key; unique to the key and the client's salt."""
    return f"rope_set:{key}:{client_salt or ''}"


def shared_by(key: bytes | None, client_salt: str | None) -> str | None:
    """Return the client's part of a salt for requests with this API key's digest, if any; unique to both."""
    salt = client_salt or ""
    if key is None:
        return f"key::{salt}" if salt.startswith("key:") else client_salt
    return f"key:{key[:16].hex()}:{salt}"


def key_part(salt: str) -> str:
    """Return the set's key from the result of :func:`salt_of`."""
    return salt.split(":", 2)[1]


def client_part(salt: str) -> str | None:
    """Return the client's salt from the result of :func:`salt_of`, or None."""
    return salt.split(":", 2)[2] or None


def placement_of(request: Any) -> Placement:
    """Return the placement that a ``vllm.v1.engine.EngineCoreRequest`` or ``vllm.v1.request.Request`` carries.

    Raises:
        FactorError: when it carries none.
    """
    carried = extra_of(request.pooling_params if request.sampling_params is None else request.sampling_params)
    if (values := carried.get(PLACEMENT)) is None:
        raise FactorError(
            f"request {request.request_id}: no factor set was chosen for it. Add requests through vllm.LLM, AsyncLLM or a "
            "server, whose InputProcessor chooses one"
        )
    index, name, policy, forced, limit, client = values
    return Placement(index, name, request.cache_salt, policy, forced, limit, client)


def carried_index(data: Any) -> int:
    """Return the index of the set of a ``vllm.v1.core.sched.output.NewRequestData``."""
    return int(extra_of(data.pooling_params if data.sampling_params is None else data.sampling_params)[PLACEMENT][0])


def asked_placement(
    ladder: EngineLadder, params: Any, num_tokens: int, client_salt: str | None, *, filled_in: bool = False
) -> Placement:
    """Place a prompt of ``num_tokens`` tokens by ``vllm.SamplingParams``, ``BeamSearchParams`` or ``PoolingParams``.

    ``filled_in``: whether a missing output limit would be filled in with the rest of the context, so that a limit that
    ends there counts as none.

    Raises:
        FieldError: for an unknown set or policy, a policy with a forced set, an invalid output limit for a decode engine,
            or a prompt longer than the ladder.
    """
    policy, limit = asked_policy(params) or ladder.policy, getattr(params, "max_tokens", None)
    if limit is not None:
        limit = None if filled_in and num_tokens + limit == ladder.max_model_len else answer_limit(params)
    forced = extra_of(params).get(FORCED_SET)
    return place(ladder, num_tokens, limit=limit, policy=policy, forced=forced, client_salt=client_salt)


def extra_of(params: Any) -> Mapping[str, Any]:
    """Return ``SamplingParams.extra_args`` (``vllm_xargs`` over HTTP), or ``PoolingParams.extra_kwargs``."""
    return getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}


def with_extra(params: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of ``SamplingParams`` or ``PoolingParams`` with more of :func:`extra_of`."""
    copied = copy(params)
    values = {**extra_of(params), **values}
    # Named by class: importing vLLM's here would load it.
    if type(params).__name__ == "PoolingParams":
        copied.extra_kwargs = values
    else:
        copied.extra_args = values
    return copied


def named_set(names: Sequence[str], name: object) -> int:
    """Return the index of the set that a request names.

    Raises:
        FieldError: when it is not the name of a set.
    """
    if not isinstance(name, str):
        raise FieldError(FORCED_FIELD, "{name!r} must be the name of a factor set", name=name)
    if name not in names:
        known = ", ".join(map(repr, names))
        raise FieldError(
            FORCED_FIELD, "unknown factor set {name}; this server has {known}", name=quoted(name), known=known
        )
    return names.index(name)


def asked_policy(sampling_params: Any) -> str | None:
    """Return the ladder policy that a request chooses in ``vllm_xargs``, or None.

    Raises:
        FactorError: for an unknown policy, or when the request also forces a set, which leaves nothing to choose.
    """
    extra = getattr(sampling_params, "extra_args", None) or {}
    if (policy := extra.get(LADDER_POLICY)) is None:
        return None
    if policy not in POLICIES:
        raise FieldError(
            POLICY_FIELD, "{policy!r} must be one of {allowed}", policy=policy, allowed=", ".join(POLICIES)
        )
    if extra.get(FORCED_SET) is not None:
        raise FieldError(
            POLICY_FIELD,
            "{policy!r} cannot be combined with {forced} or MODEL@SET, which keep the request in one set; leave one out",
            policy=policy,
            forced=FORCED_FIELD,
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
        raise FieldError(ANSWER_LIMIT_FIELD, "{limit!r} must be a number of tokens above 0", limit=limit)
    return limit
