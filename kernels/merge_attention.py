"""Op 5: merge attention over disjoint parts of one sequence's keys.

Source: FlashAttention-2 (arXiv:2307.08691), section 2.3.1: a part's weight is exp(its log-sum-exp - the total's).
"""

import torch


def merge_attention(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the outputs of attention over disjoint sets of keys.

    Args:
        outs: ``[parts, tokens, heads, head_size]`` float32: each part's own output.
        lses: ``[parts, tokens, heads]`` float32 natural log-sum-exps; minus infinity where a part has no keys; its output
            is then ignored.

    Returns:
        The output over all keys ``[tokens, heads, head_size]`` float32 and its log-sum-exp ``[tokens, heads]`` float32;
        0 and minus infinity where no part has keys.
    """
    lse = lses.logsumexp(0)
    empty = lses == -torch.inf
    shares = (lses - lse).exp().masked_fill(empty, 0.0)
    return (outs.masked_fill(empty[..., None], 0.0) * shares[..., None]).sum(0), lse
