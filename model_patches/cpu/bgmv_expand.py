"""``vllm.lora.ops.torch_ops.lora_ops.bgmv_expand`` and ``bgmv_expand_slice``: wrapped to leave base-model rows alone.

replaces: the CPU's second LoRA matrix product, under both of its names.
why: a token without an adapter has index -1. Upstream indexes with it and so applies the last adapter: a base-model request
    batched with an adapter's gets wrong tokens (vLLM pull requests 48421 and 49656, open at 0.32.0).
what differs: rows with index -1 add nothing.
limits: none known.
when it can go: with the release that includes either pull request.
"""

from collections.abc import Callable
from typing import Any

import torch


def skipping_base_rows(upstream: Callable[..., None]) -> Callable[..., None]:
    """Wrap either function; ``inputs`` is ``[tokens, rank]``, ``lora_indices_tensor`` ``[tokens]``."""

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
