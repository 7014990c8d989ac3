"""Op 3: attention of a step's queries over the cached keys that this rank holds, with the log-sum-exp that merging needs.

A sequence's cached keys may be split over ranks; every query of it attends to all of them, so there is no mask here. What
the step's own tokens see of each other is ``causal_attention``; ``merge_attention`` puts the parts together. A rank may
hold no key of a sequence: its part is then 0 with a log-sum-exp of minus infinity.
"""

import torch

# Keys per pass. The gathered, float32 keys and values of one head of 128 values are then 4 MiB, however long the sequence.
PASS = 4096


def paged_attention_reference(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: list[int],
    query_starts: list[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op in float64, one query head of one request at a time; arguments and results as :func:`paged_attention`."""
    block_size, head = cache.shape[2], query.shape[2]
    group = query.shape[1] // cache.shape[1]
    out = torch.zeros(query.shape, dtype=torch.float64)
    lse = torch.full(query.shape[:2], -torch.inf, dtype=torch.float64)
    for request, length in enumerate(lengths):
        rows = slice(query_starts[request], query_starts[request + 1])
        places = [(int(block_table[request, i // block_size]), i % block_size) for i in range(length)]
        for q_head in range(query.shape[1] if length else 0):
            keys_values = torch.stack([cache[block, q_head // group, offset].double() for block, offset in places])
            scores = query[rows, q_head].double() @ keys_values[:, :head].T * scale
            out[rows, q_head] = scores.softmax(-1) @ keys_values[:, head:]
            lse[rows, q_head] = scores.logsumexp(-1)
    return out, lse


def paged_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: list[int],
    query_starts: list[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to a paged cache without a mask; on a CPU, in float32 whatever the types.

    Args:
        query: ``[tokens, query heads, head_size]``, any float type; as many heads in a row read each KV head.
        cache: ``[blocks, KV heads, block_size, 2 * head_size]``: of each token, its key and then its value.
        block_table: ``[requests, >= blocks of the longest]`` integers: where each request's blocks are, in order.
        lengths: Keys that this rank holds of each request, 0 or more.
        query_starts: ``[requests + 1]``: request i has the queries ``query_starts[i]`` to ``query_starts[i + 1] - 1``.
        scale: Multiplier of the dot products.

    Returns:
        The output ``[tokens, query heads, head_size]`` float32, and the natural log-sum-exp of the scaled dot products
        ``[tokens, query heads]`` float32; 0 and minus infinity where a request has no key here.
    """
    out = torch.zeros(query.shape, dtype=torch.float32)
    lse = torch.full(query.shape[:2], -torch.inf, dtype=torch.float32)
    for request, length in enumerate(lengths):
        rows = slice(query_starts[request], query_starts[request + 1])
        if length and rows.start < rows.stop:
            _attend(query[rows], cache, block_table[request], length, scale, out[rows], lse[rows])
    return out, lse


def _attend(
    query: torch.Tensor,
    cache: torch.Tensor,
    blocks: torch.Tensor,
    length: int,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """One request's queries over its ``length`` keys, pass by pass, into ``out`` and ``lse``."""
    kv_heads, block_size, head = cache.shape[1], cache.shape[2], query.shape[2]
    tokens = query.shape[0]
    # Without a mask the heads that share a KV head are only more queries: [1, KV heads, tokens * group, head].
    folded = query.float().unflatten(1, (kv_heads, -1)).movedim(0, 1).flatten(1, 2)[None]
    blocks_per_pass = max(1, PASS // block_size)
    for first in range(0, (length + block_size - 1) // block_size, blocks_per_pass):
        here = min(length - first * block_size, blocks_per_pass * block_size)
        gathered = cache.index_select(0, blocks[first : first + (here + block_size - 1) // block_size])
        keys_values = gathered.movedim(1, 0).flatten(1, 2)[None, :, :here].float()
        part, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            folded, keys_values[..., :head], keys_values[..., head:], scale=scale
        )
        part = part[0].unflatten(1, (tokens, -1)).movedim(0, 1).flatten(1, 2)
        part_lse = part_lse[0].unflatten(1, (tokens, -1)).movedim(0, 1).flatten(1, 2)
        if first == 0:
            out.copy_(part)
            lse.copy_(part_lse)
        else:
            total = torch.logaddexp(lse, part_lse)
            out.mul_((lse - total).exp()[..., None]).addcmul_(part, (part_lse - total).exp()[..., None])
            lse.copy_(total)
