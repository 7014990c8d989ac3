"""``vllm.lora.ops.torch_ops.lora_ops.bgmv_expand``, ``vllm.v1.sample.rejection_sampler.expand_batch_to_tokens``: mended.

replaces: on CPUs, the second LoRA matrix product (``bgmv_expand``, ``bgmv_expand_slice``, under both of their names), and
    the function that repeats each request's temperature, top-k and top-p for its drafts.
why: a token without an adapter has index -1, by which upstream applies the last adapter (vLLM pull requests 48421 and
    49656, open at 0.32.0). Upstream's substitute for the Triton kernel ``_expand_kernel`` writes to a copy of its output,
    so sampled tokens with drafts do not follow the model's distribution.
what differs: rows with index -1 add nothing; the sampler's function is written in torch.
limits: CPUs; the V2 runner has its own rejection sampler.
when it can go: with the release that includes either pull request; when upstream's substitute writes its output.
"""

from collections.abc import Callable
from typing import Any

import torch


def skipping_base_rows(upstream: Callable[..., None]) -> Callable[..., None]:
    """Wrap either product; ``inputs`` is ``[tokens, rank]``, ``lora_indices_tensor`` ``[tokens]``."""

    def bgmv_expand(
        inputs: torch.Tensor,
        lora_b_weights: torch.Tensor,
        output_tensor: torch.Tensor,
        lora_indices_tensor: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        inputs = inputs.masked_fill((lora_indices_tensor < 0)[:, None], 0)
        upstream(inputs, lora_b_weights, output_tensor, lora_indices_tensor, *args, **kwargs)

    return bgmv_expand


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
