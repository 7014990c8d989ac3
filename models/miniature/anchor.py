"""AnchorAttention (arXiv:2411.13476): packed documents see themselves and one shared first token.

A row is the anchor (token 0) and then documents one after the other. A token attends to the anchor and to the tokens before
it in its own document; positions run on over the whole row, so that late ones are trained at the cost of short documents.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "anchor"


def anchor_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float,
    documents: Sequence[int] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of query, key and value ``[rows, heads, n, head_dim]``; gives ``[rows, n, heads, head_dim]``.

    documents: lengths of the documents behind the anchor, ``n - 1`` in all; None: the row is one document.
    """
    rows = query.shape[2]
    if documents is None:
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        return out.transpose(1, 2), None
    if sum(documents) != rows - 1:
        raise ValueError(f"documents are {sum(documents)} tokens in all; the row has {rows - 1} behind its anchor")
    parts, first = [value[:, :, :1]], 1
    for length in documents:
        own = slice(first, first + length)
        with_anchor = [torch.cat((each[:, :, :1], each[:, :, own]), 2) for each in (query, key, value)]
        q, k, v = with_anchor
        parts.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)[:, :, 1:])
        first += length
    return torch.cat(parts, 2).transpose(1, 2), None


def register() -> None:
    """Make ``attn_implementation="anchor"`` known to transformers; models then take ``documents=`` in their call."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, anchor_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *_, **__: None)
