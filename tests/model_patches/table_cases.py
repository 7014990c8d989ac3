"""Upstream's fused kernels of DeepSeek's sparse attention, interpreted: row numbers and rows, positions and a table."""

from functools import partial

import pytest
import torch
from vllm.models.deepseek_v32.common import kernels

TOKENS, HEADS, NOPE, ROPE, LATENT, INDEX_HEADS, INDEX, TOPK, BLOCK = 5, 2, 16, 8, 16, 2, 16, 4, 4


def run(positions: torch.Tensor, table: torch.Tensor, interleaved: bool) -> list[torch.Tensor]:
    """What both kernels write for the same tokens: queries, latents, keys, the indexer's queries and both caches."""
    torch.manual_seed(1)
    randn = partial(torch.randn, dtype=torch.bfloat16)
    latents = torch.zeros(3, BLOCK, LATENT + ROPE, dtype=torch.bfloat16)
    keys = torch.zeros(3, BLOCK, INDEX + 4, dtype=torch.uint8)
    slots = torch.tensor([3, 4, 5, 8, 0])
    kv, key, index_key = torch.empty(TOKENS, LATENT), torch.empty(TOKENS, ROPE), torch.empty(TOKENS, INDEX)
    topk = torch.zeros(TOKENS, TOPK, dtype=torch.int32)
    query = kernels.fused_norm_rope(
        positions, randn(TOKENS, 32), torch.ones(32), 1e-6, randn(TOKENS, LATENT), torch.ones(LATENT), 1e-6,
        randn(TOKENS, ROPE), table, randn(TOKENS, INDEX), torch.ones(INDEX), torch.zeros(INDEX), 1e-6, table, topk,
        slot_mapping=slots, indexer_slot_mapping=slots, indexer_k_cache=keys, mla_kv_cache=latents,
        index_rope_interleave=interleaved, kv_c_out=kv, k_pe_out=key, index_k_out=index_key,
    )  # fmt: skip
    found = kernels.fused_q(
        positions, randn(TOKENS, HEADS, ROPE), table, randn(TOKENS, INDEX_HEADS, INDEX), table,
        randn(TOKENS, HEADS, NOPE), torch.ones(1), randn(TOKENS, INDEX_HEADS), 1.0, 1.0,
        index_rope_interleave=interleaved, quantize_mqa=False,
    )  # fmt: skip
    return [each.float() for each in (query, kv, key, index_key, latents, keys, *found)]


@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_by_row_number_are_the_table_by_position(interleaved: bool) -> None:
    """The rows of a step's tokens, by row number, give what the whole table gives by position."""
    table = torch.rand(64, ROPE) * 2 - 1
    positions = torch.tensor([40, 41, 3, 3, 63])
    expected = run(positions, table, interleaved)
    found = run(torch.arange(TOKENS), torch.cat([table[positions], torch.full((9, ROPE), 7.0)]), interleaved)
    assert all(map(torch.equal, found, expected))
    other = run(torch.arange(TOKENS), table, interleaved)
    # Unrotated: query and latents. Rotated: key, the indexer's key, both caches, its queries, the attention's queries.
    same = [torch.equal(*pair) for pair in zip(other, expected, strict=True)]
    assert same[:2] == [True, True] and not any((*same[2:7], same[8]))
