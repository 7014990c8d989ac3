"""Only the last rows of a model's last layer are wanted where only the last tokens are judged; the others are not computed.

For a model of two layers, as the bundled one, that halves what a long text costs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# Rows whose mask is held at a time: 64 MiB of it at a quarter of a million tokens.
ROWS = 256


@contextmanager
def last_rows_only(model: Any, keep: int) -> Iterator[None]:
    """Within the block the last ``keep`` hidden states that ``model`` gives are right, those before them need not be.

    Only models that attend with PyTorch's scaled_dot_product_attention change; keys and values are whole for all tokens.
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
