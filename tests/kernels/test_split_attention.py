"""Attention over keys that are dealt out over ranks: each op against its float64 reference, and all of them together."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.kernels import paged_attention as paged
from ropeswitch.kernels.causal_attention import causal_attention
from ropeswitch.kernels.local_slots import local_slots
from ropeswitch.kernels.merge_attention import merge_attention
from ropeswitch.kernels.paged_attention import paged_attention
from ropeswitch.kernels.write_cache import write_cache

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Requests of a step: new tokens, and keys that are cached here.
REQUESTS = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 1, 7, 8, 9, 31, 40])), min_size=1, max_size=5)
# KV heads, query heads for each of them, head size: sizes that models have, and odd ones.
HEADS = st.sampled_from([(1, 1, 32), (1, 4, 64), (2, 3, 96), (1, 7, 128), (2, 1, 80), (1, 2, 20)])


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One head's attention in float64, and the log-sum-exp of its scores; without keys 0 and minus infinity."""
    scores = query.double() @ keys.double().T * scale
    return scores.softmax(-1) @ values.double(), scores.logsumexp(-1)


def paged_reference(
    query: torch.Tensor, cache: torch.Tensor, block_table: torch.Tensor, lengths: list[int],
    query_starts: list[int], scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What `paged_attention` returns, in float64, one head of one request at a time."""
    block_size, head = cache.shape[2], query.shape[2]
    group = query.shape[1] // cache.shape[1]
    out = torch.empty(query.shape, dtype=torch.float64)
    lse = torch.empty(query.shape[:2], dtype=torch.float64)
    for request, length in enumerate(lengths):
        rows = slice(query_starts[request], query_starts[request + 1])
        places = torch.arange(length)
        blocks, offsets = block_table[request, places // block_size], places % block_size
        for q_head in range(query.shape[1]):
            keys, values = cache[blocks, q_head // group, offsets].split(head, dim=-1)
            out[rows, q_head], lse[rows, q_head] = attention(query[rows, q_head], keys, values, scale)
    return out, lse


def causal_reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_starts: list[int], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `causal_attention` returns, in float64, one token and head at a time."""
    group = query.shape[1] // key.shape[1]
    out = torch.empty(query.shape, dtype=torch.float64)
    lse = torch.empty(query.shape[:2], dtype=torch.float64)
    for start, stop in pairwise(query_starts):
        for token in range(start, stop):
            for head in range(query.shape[1]):
                keys, values = (each[start : token + 1, head // group] for each in (key, value))
                out[token, head], lse[token, head] = attention(query[token, head], keys, values, scale)
    return out, lse


def merge_reference(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What `merge_attention` returns, in float64, one row at a time."""
    out = torch.zeros(outs.shape[1:], dtype=torch.float64)
    lse = torch.full(lses.shape[1:], -torch.inf, dtype=torch.float64)
    for token in range(lses.shape[1]):
        for head in range(lses.shape[2]):
            present = lses[:, token, head] != -torch.inf
            if present.any():
                scores = lses[present, token, head].double()
                lse[token, head] = scores.logsumexp(0)
                out[token, head] = scores.softmax(0) @ outs[present, token, head].double()
    return out, lse


def slot_reference(position: int, table: list[int], block_size: int, ranks: int, rank: int, interleave: int) -> int:
    """One token's slot: its place in this rank's cache is the number of earlier positions that the rank owns."""
    own = [p for p in range(position + 1) if p // interleave % ranks == rank]
    if position not in own:
        return -1
    block, offset = divmod(len(own) - 1, block_size)
    return table[block] * block_size + offset


@given(requests=REQUESTS, heads=HEADS, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_paged(requests: list[tuple[int, int]], heads: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    kv_heads, group, head = heads
    starts = [0, *accumulate(new for new, _ in requests)]
    lengths = [cached for _, cached in requests]
    query = random(starts[-1], kv_heads * group, head, seed=seed, dtype=dtype)
    cache = random(32, kv_heads, 8, 2 * head, seed=seed + 1, dtype=dtype)
    # What is beyond a request's keys must not matter: blocks may hold anything there.
    blocks = torch.randperm(32, generator=torch.Generator().manual_seed(seed))[:25].view(5, 5).int()[: len(requests)]
    out, lse = paged_attention(query, cache, blocks, lengths, starts, head**-0.5)
    expected_out, expected_lse = paged_reference(query, cache, blocks, lengths, starts, head**-0.5)
    close(out, expected_out)
    close(lse, expected_lse)
    for request, length in enumerate(lengths):
        rows = slice(starts[request], starts[request + 1])
        assert bool((lse[rows] == -torch.inf).all()) == (length == 0)
        assert length or not out[rows].any()


def test_paged_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long sequences are read pass by pass; the passes are merged as the ranks are."""
    query, cache = random(3, 4, 64, seed=1), random(40, 2, 8, 128, seed=2)
    blocks = torch.randperm(40, generator=torch.Generator().manual_seed(3))[None].int()
    for length in (1, 16, 17, 33, 300, 320):
        expected_out, expected_lse = paged_reference(query, cache, blocks, [length], [0, 3], 1.0)
        for keys in (1, 16, 64):
            monkeypatch.setattr(paged, "PASS", keys)
            out, lse = paged_attention(query, cache, blocks, [length], [0, 3], 1.0)
            close(out, expected_out)
            close(lse, expected_lse)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    heads=HEADS, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60)
def test_causal(lengths: list[int], heads: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    kv_heads, group, head = heads
    starts = [0, *accumulate(lengths)]
    query = random(starts[-1], kv_heads * group, head, seed=seed, dtype=dtype)
    key, value = (random(starts[-1], kv_heads, head, seed=seed + i, dtype=dtype) for i in (1, 2))
    out, lse = causal_attention(query, key, value, starts, head**-0.5)
    expected_out, expected_lse = causal_reference(query, key, value, starts, head**-0.5)
    close(out, expected_out)
    close(lse, expected_lse)


@given(data=st.data(), parts=st.integers(1, 5), tokens=st.integers(0, 4), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_merge(data: st.DataObject, parts: int, tokens: int, seed: int) -> None:
    outs, lses = random(parts, tokens, 2, 16, seed=seed), 30 * random(parts, tokens, 2, seed=seed + 1)
    places = st.lists(st.booleans(), min_size=lses.numel(), max_size=lses.numel())
    empty = torch.tensor(data.draw(places), dtype=torch.bool).view(lses.shape)
    lses[empty] = -torch.inf
    # Nothing may be read of a part without a key.
    outs[empty] = torch.nan
    out, lse = merge_attention(outs, lses)
    expected_out, expected_lse = merge_reference(outs, lses)
    close(out, expected_out)
    close(lse, expected_lse)
    nowhere = empty.all(0)
    assert not out[nowhere].any() and bool((lse[nowhere] == -torch.inf).all())


@given(
    ranks=st.integers(1, 4), interleave=st.sampled_from([1, 2, 4, 8]), blocks=st.integers(1, 3),
    places=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 95)), max_size=20),
)  # fmt: skip
@settings(max_examples=100)
def test_slots(ranks: int, interleave: int, blocks: int, places: list[tuple[int, int]]) -> None:
    """Each token has one slot, on one rank, and it is the place that the reference counts out."""
    block_size = 8 * blocks
    tables = [[30, 4, 11, 7, 2, 9, 1, 0, 3, 5, 6, 8], [10] * 12, list(range(20, 32))]
    requests, positions = torch.tensor([r for r, _ in places]).long(), torch.tensor([p for _, p in places]).long()
    found = []
    for rank in range(ranks):
        slots = local_slots(positions, requests, torch.tensor(tables), block_size, ranks, rank, interleave)
        assert slots.tolist() == [
            slot_reference(position, tables[request], block_size, ranks, rank, interleave)
            for request, position in places
        ]
        found.append(slots)
    if places:
        assert ((torch.stack(found) >= 0).sum(0) == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_write(dtype: torch.dtype) -> None:
    """Views of one projection go to their slots, padded and remote tokens nowhere, and nothing else changes."""
    both = random(9, 2 * 2 * 16, seed=5, dtype=dtype)
    key, value = (each.view(9, 2, 16) for each in both.split(32, dim=-1))
    slots = torch.tensor([5, -1, 0, 39, -1, 17, 16])
    cache = random(5, 2, 8, 32, seed=6, dtype=dtype)
    expected = cache.clone()
    write_cache(key, value, cache, slots)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 8, :, slot % 8] = torch.cat((key[token], value[token]), dim=-1)
    assert torch.equal(cache, expected)


@given(
    ranks=st.integers(1, 4), interleave=st.sampled_from([1, 4, 8]), seed=st.integers(0, 99),
    requests=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 5)), min_size=1, max_size=3),
)  # fmt: skip
@settings(max_examples=30)
def test_ranks_together_see_the_whole_sequence(
    ranks: int, interleave: int, seed: int, requests: list[tuple[int, int]]
) -> None:
    """Prefill, then decode step by step, over any ranks: what one causal attention over all tokens gives."""
    block_size, heads, head = 8, 4, 32
    totals = [prompt + steps for prompt, steps in requests]
    tokens = [
        (random(n, heads, head, seed=seed + i), *(random(n, 1, head, seed=seed + i + j) for j in (50, 80)))
        for i, n in enumerate(totals)
    ]
    caches = [torch.full((len(requests) * 4, 1, block_size, 2 * head), torch.nan) for _ in range(ranks)]
    table = torch.arange(len(requests) * 4).view(len(requests), 4).int()
    done = [0] * len(requests)
    seen: list[list[torch.Tensor]] = [[] for _ in requests]
    while any(done[i] < totals[i] for i in range(len(requests))):
        running = [i for i in range(len(requests)) if done[i] < totals[i]]
        new = [requests[i][0] if done[i] == 0 else 1 for i in running]
        starts = [0, *accumulate(new)]
        query, key, value = (
            torch.cat([tokens[i][part][done[i] : done[i] + n] for i, n in zip(running, new, strict=True)])
            for part in range(3)
        )
        positions = torch.cat([torch.arange(done[i], done[i] + n) for i, n in zip(running, new, strict=True)])
        rows = torch.tensor(running).repeat_interleave(torch.tensor(new))
        parts = [causal_attention(query, key, value, starts, 0.3)]
        for rank, cache in enumerate(caches):
            held = [sum(p // interleave % ranks == rank for p in range(done[i])) for i in running]
            parts.append(paged_attention(query, cache, table[running], held, starts, 0.3))
            write_cache(key, value, cache, local_slots(positions, rows, table, block_size, ranks, rank, interleave))
        out, _ = merge_attention(torch.stack([o for o, _ in parts]), torch.stack([s for _, s in parts]))
        for place, (i, n) in enumerate(zip(running, new, strict=True)):
            seen[i].append(out[starts[place] : starts[place + 1]])
            done[i] += n
    for i, (query, key, value) in enumerate(tokens):
        expected, _ = causal_reference(query, key, value, [0, totals[i]], 0.3)
        close(torch.cat(seen[i]), expected)
