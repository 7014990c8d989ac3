"""Skips the attention of rows in a model's last layer whose hidden states nobody reads.

When only the last tokens are scored, this halves the cost of a long text for a two-layer model such as the bundled one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# Rows per attention mask: 64 MiB at 262,144 tokens.
ROWS = 256


@contextmanager
def last_rows_only(model: Any, keep: int) -> Iterator[None]:
    """Compute only the last ``keep`` hidden states of ``model`` inside the block; earlier ones may be wrong.

    Affects only models that use PyTorch's scaled_dot_product_attention. Keys and values are complete for all tokens.
    """
    if model.config._attn_implementation != "sdpa":
        yield
        return
    last = model.config.num_hidden_layers - 1

    def attend(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        **how: Any,
    ) -> tuple[torch.Tensor, None]:
        tokens = query.shape[2]
        if mask is not None or module.layer_idx != last or tokens <= keep or key.shape[2] != tokens:
            return sdpa_attention_forward(module, query, key, value, mask, **how)
        out = value.new_zeros(query.shape[0], tokens, query.shape[1], value.shape[3])
        for first in range(tokens - keep, tokens, ROWS):
            end = min(first + ROWS, tokens)
            seen = torch.arange(end, device=query.device) <= torch.arange(first, end, device=query.device)[:, None]
            part = query[:, :, first:end], key[:, :, :end], value[:, :, :end], seen[None, None]
            out[:, first:end], _ = sdpa_attention_forward(module, *part, **how)
        return out, None

    ALL_ATTENTION_FUNCTIONS.register("last_rows", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("last_rows", sdpa_mask)
    model.set_attn_implementation("last_rows")
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")
