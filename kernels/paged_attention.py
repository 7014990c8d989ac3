"""Op 3: attention of a step's queries over this rank's cached keys, with the log-sum-exp needed for merging.

A sequence's cached keys may be sharded over ranks. Each of its queries attends to all of them, so there is no mask.
``causal_attention`` computes attention among the step's own tokens; ``merge_attention`` merges the parts. A rank without
keys of a sequence returns 0 with a log-sum-exp of minus infinity.
"""

import torch

# Keys per pass. One head's gathered keys and values, of 128 float32 values each, take 4 MiB for any sequence length.
PASS = 4096


def paged_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: list[int],
    query_starts: list[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to a paged cache without a mask, on a CPU in float32 for all dtypes.

    Args:
        query: ``[tokens, query heads, head_size]``, any float type; each KV head serves an equal run of consecutive heads.
        cache: ``[blocks, KV heads, block_size, 2 * head_size]``: each token's key, then its value.
        block_table: ``[requests, >= blocks of the longest]`` integer block numbers of each request, in order.
        lengths: Number of each request's keys on this rank, 0 or more.
        query_starts: ``[requests + 1]``: request i has the queries ``query_starts[i]`` to ``query_starts[i + 1] - 1``.
        scale: Multiplier of the dot products.

    Returns:
        The output ``[tokens, query heads, head_size]`` float32, and the natural log-sum-exp of the scaled dot products
        ``[tokens, query heads]`` float32; 0 and minus infinity where a request has no keys here.
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
    """Attend from one request's queries to its ``length`` keys, pass by pass, into ``out`` and ``lse``."""
    kv_heads, block_size, head = cache.shape[1], cache.shape[2], query.shape[2]
    tokens = query.shape[0]
    # Without a mask, heads that share a KV head are just more queries: [1, KV heads, tokens * group, head].
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
