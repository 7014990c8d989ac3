"""``vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys``: wrapped to salt the prefix cache by factor set.

replaces: the extra keys of a block's hash, and of the KV events of ``vllm.v1.core.block_pool``, which binds the function by
    name on import.
why: a cached block holds keys rotated with one set; the same tokens in another set must not find it, here or in a router
    that rebuilds the prefix cache from events.
what differs: block 0 of a request in any set but the first gets one more key, ``rope_set:`` and the set's index. Hashes
    chain, so every later block differs too. A user's own ``cache_salt`` is another key and is kept. Events hold the key as a
    string, as they do a salt.
limits: none known.
when it can go: when requests can carry extra hash keys of their own.
"""

from collections.abc import Callable
from typing import Any

from ropeswitch.model_patches.switch.request_set import assigned_set

# Before the function's own module is patched, or the other would bind the patched one.
TARGETS = (
    "vllm.v1.core.block_pool.generate_block_hash_extra_keys",
    "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys",
)
ExtraKeys = Callable[[Any, int, int, int], tuple[tuple[Any, ...] | None, int]]


def salted(upstream: ExtraKeys) -> ExtraKeys:
    """Wrap ``generate_block_hash_extra_keys``."""

    def generate_block_hash_extra_keys(
        request: Any, start_token_idx: int, end_token_idx: int, start_mm_idx: int
    ) -> tuple[tuple[Any, ...] | None, int]:
        keys, mm_idx = upstream(request, start_token_idx, end_token_idx, start_mm_idx)
        if start_token_idx == 0 and (index := assigned_set(request)):
            keys = (*(keys or ()), ("rope_set", f"rope_set:{index}"))
        return keys, mm_idx

    return generate_block_hash_extra_keys
