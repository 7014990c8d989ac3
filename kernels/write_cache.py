"""Op 7: write a step's keys and values into the paged cache."""

import torch


def write_cache(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write keys and values into ``cache`` in place.

    Args:
        key: ``[>= tokens, KV heads, head_size]``, in the cache's dtype.
        value: Like ``key``.
        cache: ``[blocks, KV heads, block_size, 2 * head_size]``: each token's key, then its value.
        slots: ``[tokens]`` int64: ``block * block_size + offset``; tokens with a negative slot are skipped.
    """
    tokens = (slots >= 0).nonzero().flatten()
    blocks, offsets = slots[tokens] // cache.shape[2], slots[tokens] % cache.shape[2]
    cache[blocks, :, offsets] = torch.cat((key[tokens], value[tokens]), dim=-1)
