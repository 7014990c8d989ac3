"""Op 2 and the cache write in one launch: rotate queries in place, put rotated keys and the values into the paged cache.

The reference is :func:`apply_rows_cache_reference`. Saves writing the rotated keys once and reading them again. No engine
calls it yet: vLLM 0.32.0 writes its cache inside the attention layer, and has no seam there on CUDA.
"""

import torch
import triton
import triton.language as tl

from ropeswitch.kernels.apply_rows import apply_rows_reference
from ropeswitch.kernels.rotate_triton import copy_heads, turn_heads
from ropeswitch.kernels.triton_launch import FUSED, blocks, check_device, check_rotation, head_layout, power_of_2, tile


def apply_rows_cache_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: torch.Tensor,
    row_numbers: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    neox: bool,
) -> torch.Tensor:
    """Rotate in float64 and write the caches token by token; arguments as in :func:`apply_rows_cache_triton`.

    Returns:
        ``[tokens, query heads * head_size]`` float64 rotated queries.
    """
    _, block_size, key_heads, head_size = key_cache.shape
    turned = apply_rows_reference(rows[row_numbers], key, head_size, neox).to(key.dtype)
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            key_cache[slot // block_size, slot % block_size] = turned[token].view(key_heads, head_size)
            value_cache[slot // block_size, slot % block_size] = value[token].view(value_cache.shape[2:])
    return apply_rows_reference(rows[row_numbers], query, head_size, neox)


@triton.jit(do_not_specialize_on_alignment=["row_numbers", "slot_mapping"])
def apply_rows_cache_kernel(  # type: ignore[no-untyped-def]
    query,
    query_stride,
    query_head_stride,
    key,
    key_stride,
    key_head_stride,
    value,
    value_stride,
    value_head_stride,
    rows,
    row_numbers,
    key_cache,
    key_block_stride,
    key_slot_stride,
    key_cache_head_stride,
    value_cache,
    value_block_stride,
    value_slot_stride,
    value_cache_head_stride,
    slot_mapping,
    block_size,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    TAIL_BLOCK: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    NEOX: tl.constexpr,
):
    """One program does ``HEADS_BLOCK`` query heads of one token, or as many key and value heads."""
    QUERY_BLOCKS: tl.constexpr = (QUERY_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    KEY_BLOCKS: tl.constexpr = (KEY_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    token = (tl.program_id(0) // (QUERY_BLOCKS + KEY_BLOCKS)).to(tl.int64)
    block = tl.program_id(0) % (QUERY_BLOCKS + KEY_BLOCKS)
    row = rows + tl.load(row_numbers + token) * (2 * PAIRS)
    if block < QUERY_BLOCKS:
        heads = query + token * query_stride
        turn_heads(
            heads, query_head_stride, heads, query_head_stride, row, block * HEADS_BLOCK,
            QUERY_HEADS, HEADS_BLOCK, PAIRS, PAIRS_BLOCK, NEOX,
        )  # fmt: skip
    else:
        head = (block - QUERY_BLOCKS) * HEADS_BLOCK
        slot = tl.load(slot_mapping + token)
        if slot >= 0:
            page, place = slot // block_size, slot % block_size
            source = key + token * key_stride
            target = key_cache + page * key_block_stride + place * key_slot_stride
            turn_heads(
                source, key_head_stride, target, key_cache_head_stride, row, head,
                KEY_HEADS, HEADS_BLOCK, PAIRS, PAIRS_BLOCK, NEOX,
            )  # fmt: skip
            if TAIL_BLOCK > 0:
                copy_heads(
                    source, key_head_stride, target, key_cache_head_stride, head,
                    KEY_HEADS, HEADS_BLOCK, 2 * PAIRS, HEAD_SIZE, TAIL_BLOCK,
                )  # fmt: skip
            copy_heads(
                value + token * value_stride, value_head_stride,
                value_cache + page * value_block_stride + place * value_slot_stride, value_cache_head_stride, head,
                KEY_HEADS, HEADS_BLOCK, 0, VALUE_SIZE, VALUE_BLOCK,
            )  # fmt: skip


def apply_rows_cache_triton(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: torch.Tensor,
    row_numbers: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    neox: bool,
) -> None:
    """Rotate ``query`` in place; write rotated ``key`` and ``value`` into the caches. ``key`` itself is not changed.

    Args:
        query: ``[tokens, query heads * head_size]`` or ``[tokens, query heads, head_size]``, bfloat16, float16 or float32.
        key: As ``query`` with the key heads.
        value: As ``key``; its heads may have another size.
        rows: ``[rows, rotary_dim]`` float32, contiguous, cosines then sines.
        row_numbers: ``[tokens]`` int64, contiguous: token i turns by ``rows[row_numbers[i]]``.
        key_cache: ``[blocks, block_size, key heads, head_size]`` of the type of ``key``, heads and slots in any order in
            memory, the values of a head side by side.
        value_cache: As ``key_cache`` with the values' head size.
        slot_mapping: ``[tokens]`` int64, contiguous: ``block * block_size + place`` of each token, no slot twice; -1 writes
            nothing.
        neox: How values pair up.

    Raises:
        TypeError, ValueError: A data type, a device or a shape that is not as above.
        RuntimeError: CPU tensors outside Triton's interpreter.
    """
    check_device(apply_rows_cache_kernel, query.device)
    head_size, value_size = key_cache.shape[3], value_cache.shape[3]
    check_rotation(query, rows, row_numbers, head_size)
    query_heads, *query_strides = head_layout("query", query, head_size, query)
    key_heads, *key_strides = head_layout("key", key, head_size, query)
    value_heads, *value_strides = head_layout("value", value, value_size, query)
    _check_cache(key_cache, value_cache, slot_mapping, key, (key_heads, value_heads))
    pairs = rows.shape[1] // 2
    pairs_block = power_of_2(pairs)
    block, warps = tile(max(query_heads, key_heads), pairs_block)
    tail = head_size - 2 * pairs
    programs = query.shape[0] * (blocks(query_heads, block) + blocks(key_heads, block))
    if programs == 0:
        return
    apply_rows_cache_kernel[(programs,)](
        query,
        *query_strides,
        key,
        *key_strides,
        value,
        *value_strides,
        rows,
        row_numbers,
        key_cache,
        *key_cache.stride()[:3],
        value_cache,
        *value_cache.stride()[:3],
        slot_mapping,
        key_cache.shape[1],
        QUERY_HEADS=query_heads,
        KEY_HEADS=key_heads,
        HEADS_BLOCK=block,
        PAIRS=pairs,
        PAIRS_BLOCK=pairs_block,
        HEAD_SIZE=head_size,
        TAIL_BLOCK=power_of_2(tail),
        VALUE_SIZE=value_size,
        VALUE_BLOCK=power_of_2(value_size),
        NEOX=neox,
        num_warps=warps,
        enable_fp_fusion=FUSED,
    )


def _check_cache(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    key: torch.Tensor,
    heads: tuple[int, int],
) -> None:
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.dtype != key.dtype:
            raise TypeError(f"{name} has dtype {cache.dtype}, but must have key's, {key.dtype}")
        fits = cache.dim() == 4 and (cache.shape[2],) * 2 == heads and cache.shape[:2] == key_cache.shape[:2]
        if not fits or cache.stride(3) != 1:
            raise ValueError(
                f"{name} has shape {tuple(cache.shape)} and strides {cache.stride()}, but must be [blocks, block_size, "
                f"{heads[0]}, head_size], the same blocks in both caches and the values of a head side by side"
            )
    if slot_mapping.dtype != torch.int64:
        raise TypeError(f"slot_mapping has dtype {slot_mapping.dtype}, but must be int64")
    if slot_mapping.shape != key.shape[:1] or not slot_mapping.is_contiguous():
        raise ValueError(
            f"slot_mapping has shape {tuple(slot_mapping.shape)} and strides {slot_mapping.stride()}, but must be "
            f"contiguous [{key.shape[0]}], one for each token"
        )
