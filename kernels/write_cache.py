"""Op 7: write a step's keys and values into the paged cache."""

import torch


def write_cache_reference(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Compute the op one token at a time; arguments as in :func:`write_cache`."""
    head, block_size = key.shape[2], cache.shape[2]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cache[slot // block_size, :, slot % block_size, :head] = key[token]
            cache[slot // block_size, :, slot % block_size, head:] = value[token]


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
