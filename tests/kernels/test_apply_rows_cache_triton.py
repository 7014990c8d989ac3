"""Rotation and cache write in one launch: what the reference writes, where it writes it, and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.conftest import rounding

pytest.importorskip("triton", reason="Triton has no build for this machine")

from ropeswitch.kernels.apply_rows_cache_triton import apply_rows_cache_reference, apply_rows_cache_triton


def make_caches(
    device: torch.device,
    blocks: int,
    block_size: int,
    heads: int,
    size: int,
    value_size: int,
    dtype: torch.dtype,
    order: str,
) -> list[torch.Tensor]:
    """Key and value cache full of NaN: heads after slots (NHD), before them (HND), or both caches side by side in a slot."""
    caches = []
    if order == "side by side":
        both = torch.full((blocks, block_size, heads, size + value_size), torch.nan, dtype=dtype, device=device)
        return list(both.split([size, value_size], dim=-1))
    for each in (size, value_size):
        if order == "NHD":
            caches.append(torch.full((blocks, block_size, heads, each), torch.nan, dtype=dtype, device=device))
        else:
            cache = torch.full((blocks, heads, block_size, each), torch.nan, dtype=dtype, device=device)
            caches.append(cache.transpose(1, 2))
    return caches


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_layout(device: torch.device, data: st.DataObject) -> None:
    tokens, heads, key_heads = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    size, value_size = data.draw(st.sampled_from([(32, 32), (64, 64), (80, 80), (96, 96), (128, 96)]))
    rotary = data.draw(st.sampled_from([size, size // 2, 10]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    neox = data.draw(st.booleans())
    blocks, block_size = 4, data.draw(st.sampled_from([1, 3, 16]))
    order = data.draw(st.sampled_from(["NHD", "HND", "side by side"]))
    slots = data.draw(st.permutations([*range(blocks * block_size), *[-1] * 5]))[:tokens]

    generator = torch.Generator().manual_seed(tokens + size)
    rows = torch.randn(tokens + 3, rotary, generator=generator).to(device)
    numbers = torch.randperm(tokens + 3, generator=generator).to(device)[3:]
    projection = torch.randn(tokens, (heads + key_heads) * size + key_heads * value_size, generator=generator)
    query, key, value = projection.to(device, dtype).split(
        [heads * size, key_heads * size, key_heads * value_size], dim=-1
    )
    slot_mapping = torch.tensor(slots, dtype=torch.int64, device=device)
    caches = make_caches(device, blocks, block_size, key_heads, size, value_size, dtype, order)
    expected = [cache.cpu().clone() for cache in caches]
    key_before = key.clone()
    turned = apply_rows_cache_reference(
        query.cpu(), key.cpu(), value.cpu(), rows.cpu(), numbers.cpu(), *expected, slot_mapping.cpu(), neox
    )
    apply_rows_cache_triton(query, key, value, rows, numbers, *caches, slot_mapping, neox)

    assert torch.equal(key, key_before)
    assert ((query.cpu().double() - turned).abs() <= rounding(dtype) * turned.abs() + 4e-6).all()
    # Both are rounded to the cache's type: at most one unit apart, and NaN in the same places.
    key_cache, unit = caches[0].cpu().double(), torch.finfo(dtype).eps
    assert torch.allclose(key_cache, expected[0].double(), rtol=unit, atol=4e-6, equal_nan=True)
    assert torch.equal(caches[1].cpu().nan_to_num(7), expected[1].nan_to_num(7))
    written = sum(slot >= 0 for slot in slots)
    assert int((~key_cache.isnan()).all(-1).all(-1).sum()) == written


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    cache = torch.zeros(2, 16, 1, 64, device=device)
    good = {
        "query": torch.zeros(4, 128, device=device),
        "key": torch.zeros(4, 64, device=device),
        "value": torch.zeros(4, 64, device=device),
        "rows": torch.zeros(4, 64, device=device),
        "row_numbers": torch.arange(4, device=device),
        "key_cache": cache,
        "value_cache": cache.clone(),
        "slot_mapping": torch.arange(4, device=device),
    }
    apply_rows_cache_triton(**good, neox=True)
    for name, bad, error in (
        ("key_cache", cache.bfloat16(), TypeError),
        ("key_cache", torch.zeros(2, 16, 2, 64, device=device), ValueError),
        ("value_cache", torch.zeros(3, 16, 1, 64, device=device), ValueError),
        ("value_cache", torch.zeros(2, 16, 1, 128, device=device)[..., ::2], ValueError),
        ("slot_mapping", good["slot_mapping"].int(), TypeError),
        ("slot_mapping", good["slot_mapping"][:3], ValueError),
        ("value", torch.zeros(4, 128, device=device), ValueError),
        ("row_numbers", good["row_numbers"][1:], ValueError),
    ):
        with pytest.raises(error, match=r" (has|is) .*must "):
            apply_rows_cache_triton(**{**good, name: bad}, neox=True)
