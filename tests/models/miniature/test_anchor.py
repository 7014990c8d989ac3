"""Packed documents see themselves and the row's first token, and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from ropeswitch.models.miniature.anchor import anchor_attention


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_it_is_attention_under_the_anchors_mask(documents: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    n = 1 + sum(documents)
    query, key, value = (torch.randn(2, 3, n, 8) for _ in range(3))
    seen = torch.zeros(n, n, dtype=torch.bool)
    seen[:, 0] = True
    first = 1
    for length in documents:
        seen[first : first + length, first : first + length] = torch.ones(length, length).tril().bool()
        first += length
    expected = scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=0.3).transpose(1, 2)
    found, _ = anchor_attention(None, query, key, value, None, 0.3, documents)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_without_documents_a_row_is_one() -> None:
    query, key, value = (torch.randn(1, 2, 7, 8) for _ in range(3))
    found, _ = anchor_attention(None, query, key, value, None, 0.3)
    alone, _ = anchor_attention(None, query, key, value, None, 0.3, [6])
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_documents_of_another_length_are_refused() -> None:
    query = torch.randn(1, 2, 7, 8)
    with pytest.raises(ValueError, match="documents are 7 tokens in all; the row has 6"):
        anchor_attention(None, query, query, query, None, 0.3, [7])
