"""The factor set and the seal that accompany a request's blocks from a prefill engine to a decode engine.

The prefill side adds both to the ``kv_transfer_params`` of its response, which a proxy or client passes to the decode side.
Blocks are loaded only with an intact seal, which binds the set to the prompt, the adapter and the blocks themselves.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ropeswitch.factors.factor_set import FactorLadder

# Fields of `kv_transfer_params`: the key of the blocks' set (`set_keys.py`), the Unix time until which a decode engine may
# load them, and the seal.
SET, UNTIL, SEAL = "rope_set", "rope_until", "rope_seal"
# Upstream's fields that locate the blocks.
_PLACE = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids", "tp_size")


def ladder_digest(ladder: FactorLadder, keys: Sequence[str]) -> str:
    """Return a digest of a whole ladder, equal on two engines whose ladders rotate every request alike.

    Args:
        ladder: The factor sets.
        keys: The key of each set (:func:`~ropeswitch.model_patches.switch.set_keys.set_keys`).
    """
    ends = [each.max_length for each in ladder.sets]
    return hashlib.sha256(json.dumps([list(keys), ends]).encode()).hexdigest()[:16]


def prompt_digest(request: Any) -> str:
    """Return a digest of everything that decides a prompt's cached keys, except the factor set.

    Args:
        request: ``vllm.v1.request.Request``.
    """
    found = hashlib.sha256(np.asarray(request.prompt_token_ids or (), dtype=np.int64).tobytes())
    adapter = request.lora_request.lora_name if request.lora_request else None
    found.update(json.dumps([adapter, [each.identifier for each in request.mm_features]]).encode())
    return found.hexdigest()[:32]


def sealed(params: Mapping[str, Any], key: str, until: float, prompt: str) -> dict[str, Any]:
    """Return a transfer's parameters with its blocks' set, their deadline and the seal added.

    Args:
        params: The parameters from upstream's connector.
        key: The set's key.
        until: Unix time until which the blocks may be loaded.
        prompt: The result of :func:`prompt_digest`.
    """
    whole = {**params, SET: key, UNTIL: until}
    return whole | {SEAL: _seal(whole, prompt)}


def is_whole(params: Mapping[str, Any], prompt: str) -> bool:
    """Return whether a transfer's parameters are those that :func:`sealed` made for this prompt."""
    return params.get(SEAL) == _seal(params, prompt)


def is_address(params: Mapping[str, Any]) -> bool:
    """Return whether a transfer's parameters name an engine, a request and its blocks in upstream's format."""
    texts = [params.get(field) for field in ("remote_engine_id", "remote_request_id", "remote_host")]
    numbers = [params.get(field) for field in ("remote_port", "tp_size")]
    numbers += [params.get(field, 1) for field in ("dcp_size", "pp_size")]
    return (
        all(isinstance(each, str) for each in texts)
        and all(isinstance(each, int) for each in numbers)
        and isinstance(params.get("remote_block_ids"), list | tuple)
    )


def _seal(params: Mapping[str, Any], prompt: str) -> str:
    bound = [params.get(field) for field in (SET, UNTIL, *_PLACE)]
    return hashlib.sha256(json.dumps([prompt, bound]).encode()).hexdigest()[:32]
