"""Op 4: causal attention among each request's new tokens, with the log-sum-exp needed for merging."""

from itertools import pairwise

import torch


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_starts: list[int], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from each token to itself and to the earlier tokens of its request in this step, in float32 on a CPU.

    Args:
        query: ``[tokens, query heads, head_size]``, any float type; each KV head serves an equal run of consecutive heads.
        key: ``[tokens, KV heads, head_size]``.
        value: Like ``key``.
        query_starts: ``[requests + 1]``: request i has the tokens ``query_starts[i]`` to ``query_starts[i + 1] - 1``.
        scale: Multiplier of the dot products.

    Returns:
        The output ``[tokens, query heads, head_size]`` float32, and the natural log-sum-exp of the scaled dot products
        ``[tokens, query heads]`` float32.
    """
    group = query.shape[1] // key.shape[1]
    # First treat every token as alone in its request, as in decode; then redo longer requests one at a time.
    values = value.float().repeat_interleave(group, dim=1)
    keys = key.float().repeat_interleave(group, dim=1)
    out, lse = values.clone(), torch.einsum("thd,thd->th", query.float(), keys) * scale
    for start, stop in pairwise(query_starts):
        if stop - start > 1:
            heads_first = [each[start:stop].float().movedim(0, 1)[None] for each in (query, keys, values)]
            part, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *heads_first, is_causal=True, scale=scale
            )
            out[start:stop] = part[0].movedim(0, 1)
            lse[start:stop] = part_lse[0].movedim(0, 1)
    return out, lse
