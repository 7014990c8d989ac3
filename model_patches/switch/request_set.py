"""Which factor set a request is in: the one place where it is decided.

A request's set is kept on vLLM's ``Request`` object as ``rope_set`` (an index into the ladder), because the request
is what the scheduler, the block hasher and the preemption path all hold.
"""

from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.model_patches.switch.settings import FORCED_SET


def set_for(ladder: FactorLadder, num_tokens: int, forced: str | None) -> int:
    """Index of the set for a sequence of ``num_tokens`` tokens: the forced one, else the first that is long enough.

    Raises:
        FactorError: when the forced name is unknown or the sequence is longer than the ladder.
    """
    return ladder.index_for(num_tokens) if forced is None else ladder.index_of(forced)


def forced_set(params: Any) -> str | None:
    """The set that a request asks for by name, or None.

    Args:
        params: ``vllm.SamplingParams``, which carry the name in ``extra_args`` (``vllm_xargs`` over HTTP), or
            ``vllm.PoolingParams``, which carry it in ``extra_kwargs``.

    Raises:
        FactorError: when the value is not a string.
    """
    extra = getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}
    name = extra.get(FORCED_SET)
    if name is not None and not isinstance(name, str):
        raise FactorError(f"vllm_xargs.{FORCED_SET}: {name!r} must be the name of a factor set")
    return name


def forced_set_of(request: Any) -> str | None:
    """The set that ``vllm.v1.request.Request`` asks for by name, or None."""
    return forced_set(request.pooling_params if request.sampling_params is None else request.sampling_params)


def wanted_set(request: Any, ladder: FactorLadder) -> int:
    """The set that ``vllm.v1.request.Request`` must be rotated with at its present length."""
    return set_for(ladder, request.num_tokens, forced_set_of(request))


def assigned_set(request: Any) -> int:
    """The set that the request's cached keys and block hashes are in; 0 before one is assigned."""
    return getattr(request, "rope_set", 0)


def assign(request: Any, index: int) -> None:
    """Move a request that holds no KV blocks into set ``index`` and hash its blocks again under it."""
    request.rope_set = index
    if request.block_hashes:
        request.block_hashes.clear()
        request.update_block_hashes()
