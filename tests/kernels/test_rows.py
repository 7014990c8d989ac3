"""Rows are exact at every position; applying them is a rotation, whatever the shape."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.kernels.angles import Frequencies, build_tables, inverse_frequencies
from ropeswitch.kernels.apply_rows import _rotate, apply_rows
from ropeswitch.kernels.axis_rows import AxisRows
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.kernels.reference import apply_rows_reference, fill_rows_reference

END = 2_097_152
THETA, ROTARY = 10000.0, 128
SETS = (
    Frequencies(tuple([1.02] * 64)),
    Frequencies(tuple(np.geomspace(1.0, 512.0, 64)), scale=1.4, start_tokens=128),
    Frequencies(tuple(np.geomspace(0.9, 60.0, 64)[::-1])),
)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.full)])
def test_every_position_of_every_set_is_exact(every: int) -> None:
    """cos and sin, before the scale, within 2e-7 of float64 at all 2,097,152 positions, or in every eighth 64k of them."""
    unscaled = tuple(Frequencies(entry.factors) for entry in SETS)
    tables = build_tables(THETA, ROTARY, unscaled, END)
    chunk = 65536
    filler = ExactRows(tables)
    rows = np.empty((chunk, ROTARY), dtype=np.float32)
    for index, entry in enumerate(unscaled):
        frequencies = inverse_frequencies(THETA, ROTARY, entry.factors)
        for first in (*range(0, END, every * chunk), END - chunk):
            positions = np.arange(first, first + chunk)
            filler.fill(torch.from_numpy(rows), torch.from_numpy(positions), torch.full((chunk,), index))
            angles = positions[:, None] * frequencies
            assert np.abs(rows[:, :64] - np.cos(angles)).max() < 2e-7
            assert np.abs(rows[:, 64:] - np.sin(angles)).max() < 2e-7


def test_tables_are_small_while_they_are_built_too() -> None:
    tracemalloc.start()
    tables = build_tables(THETA, ROTARY, SETS, END)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tables.coarse.nbytes + tables.fine.nbytes <= peak < 4e6 * len(SETS)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_rows_of_a_mixed_step(data: st.DataObject) -> None:
    """Any tokens of any sets in one step, start tokens and scales included, equal the float64 reference."""
    count = data.draw(st.integers(1, 40))
    places = st.one_of(st.integers(0, 300), st.integers(0, END - 1), st.just(END - 1))
    positions = np.array(data.draw(st.lists(places, min_size=count, max_size=count)), dtype=np.int64)
    chosen = np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), dtype=np.int64)
    rows = torch.full((64, ROTARY), torch.nan)
    ExactRows(build_tables(THETA, ROTARY, SETS, END)).fill(rows, torch.from_numpy(positions), torch.from_numpy(chosen))
    expected = fill_rows_reference(positions, chosen, THETA, ROTARY, SETS)
    assert (rows[:count] - expected).abs().max() < 2e-7 * 1.4 + 1e-7
    assert rows[count:].isnan().all()


def test_float32_rows_are_hugging_faces() -> None:
    from transformers import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    short, long = [1.0 + i / 100 for i in range(48)], [1.0 + i * i / 40 for i in range(48)]
    config = Phi3Config(
        hidden_size=96, num_attention_heads=1, max_position_embeddings=131072, original_max_position_embeddings=4096,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long,
                         "original_max_position_embeddings": 4096},
    )  # fmt: skip
    scale = math.sqrt(1 + math.log(32) / math.log(4096))
    sets = (Frequencies(tuple(short), scale), Frequencies(tuple(long), scale))
    filler = AxisRows(10000.0, 96, sets, dtype=torch.float32)
    for length, index in ((4096, 0), (9000, 1)):
        positions = torch.arange(length)
        rows = torch.empty(length, 96)
        filler.fill(rows, positions, torch.full((length,), index))
        cos, sin = Phi3RotaryEmbedding(config)(torch.zeros(1), positions[None])
        assert torch.equal(rows[:, :48], cos[0, :, :48])
        assert torch.equal(rows[:, 48:], sin[0, :, :48])


def test_float32_rows_keep_the_unscaled_angles_below_start_tokens() -> None:
    positions, chosen = torch.tensor([127, 128, 127]), torch.tensor([1, 1, 0])
    rows = torch.empty(3, ROTARY)
    AxisRows(THETA, ROTARY, SETS, dtype=torch.float32).fill(rows, positions, chosen)
    expected = fill_rows_reference(positions.numpy(), chosen.numpy(), THETA, ROTARY, SETS)
    assert torch.allclose(rows.double(), expected, atol=1e-4)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(
    ("tokens", "heads", "head", "rotary"),
    [
        (1, 1, 2, 2),
        (3, 5, 6, 4),
        (17, 4, 96, 96),
        (64, 8, 128, 96),
        (600, 16, 64, 32),
        (700, 8, 96, 96),
        (33, 3, 80, 32),
        (0, 2, 64, 64),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_apply(
    neox: bool, tokens: int, heads: int, head: int, rotary: int, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(tokens + head)
    angles = torch.rand(tokens, rotary // 2, generator=generator) * 7
    rows = torch.cat((angles.cos(), angles.sin()), dim=-1)
    # As vLLM hands them over: views of one projection, not contiguous.
    both = torch.randn(tokens, (heads + 2) * head, generator=generator).to(dtype)
    query, key = both.split([heads * head, 2 * head], dim=-1)
    rotated_query, rotated_key = apply_rows(rows, query, key, head, neox)
    assert rotated_key is not None
    fused = _rotate(*rows.unsqueeze(1).chunk(2, dim=-1), query, head, neox)
    for rotated, values in ((rotated_query, query), (rotated_key, key), (fused, query)):
        assert rotated.dtype == dtype and rotated.shape == values.shape
        expected = apply_rows_reference(rows, values, head, neox)
        assert torch.allclose(rotated.double(), expected, atol=tolerance, rtol=tolerance)
    by_head, no_key = apply_rows(rows, query.reshape(tokens, heads, head), None, head, neox)
    assert no_key is None and torch.equal(by_head.reshape(query.shape), rotated_query)
