"""``vllm.v1.sample.rejection_sampler.expand_batch_to_tokens``: replaced on CPUs, where upstream's output is never written.

replaces: the function that repeats each request's temperature, top-k and top-p for its drafts.
why: upstream's substitute for its Triton kernel (``cpu_triton_utils._expand_kernel_impl``) casts the output to int64 and
    writes to the copy. With drafts of any kind, sampled tokens then do not follow the model's distribution.
what differs: the function is written in torch.
limits: CPUs; the V2 runner has its own rejection sampler.
when it can go: when upstream's substitute writes its output.
"""

from collections.abc import Callable

import torch


def expanding(upstream: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the replacement, with upstream's arguments and result."""

    def expand_batch_to_tokens(
        x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> torch.Tensor:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        return (
            torch.where(x == replace_from, replace_to, x).to(x.dtype).repeat_interleave(counts, output_size=num_tokens)
        )

    return expand_batch_to_tokens
