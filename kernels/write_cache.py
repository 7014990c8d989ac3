"""Op 7: write a step's keys and values into the paged cache."""

import torch


def write_cache_reference(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """The op, one token at a time; arguments as :func:`write_cache`."""
    head, block_size = key.shape[2], cache.shape[2]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cache[slot // block_size, :, slot % block_size, :head] = key[token]
            cache[slot // block_size, :, slot % block_size, head:] = value[token]


def write_cache(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write in place.

    Args:
        key: ``[>= tokens, KV heads, head_size]``, of the cache's type.
        value: As ``key``.
        cache: ``[blocks, KV heads, block_size, 2 * head_size]``: of each token, its key and then its value.
        slots: ``[tokens]`` int64: ``block * block_size + offset``; tokens with a negative one are not written.
    """
    tokens = (slots >= 0).nonzero().flatten()
    blocks, offsets = slots[tokens] // cache.shape[2], slots[tokens] % cache.shape[2]
    cache[blocks, :, offsets] = torch.cat((key[tokens], value[tokens]), dim=-1)
