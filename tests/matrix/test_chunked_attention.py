"""Chunked attention in torch is plain attention under the mask that vLLM's Triton kernel has."""

import torch
import torch.nn.functional as F

from tests.matrix.chunked_attention import attend


def test_it_is_attention_under_the_mask() -> None:
    torch.manual_seed(0)
    length, last, size, lookback = 23, 9, 4, 1
    query, keys, values = torch.randn(last, 4, 8), torch.randn(length, 2, 8), torch.randn(length, 2, 8)
    seen = [
        [key <= at and key >= (at // size - lookback) * size for key in range(length)]
        for at in range(length - last, length)
    ]
    heads = (each.transpose(0, 1).unsqueeze(0) for each in (query, keys, values))
    wanted = F.scaled_dot_product_attention(*heads, attn_mask=torch.tensor(seen), scale=0.3, enable_gqa=True)
    torch.testing.assert_close(attend(query, keys, values, 0.3, 0.0, size, lookback), wanted[0].transpose(0, 1))
