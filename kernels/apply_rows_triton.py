"""Op 2 on a GPU: rotate queries and keys with the step's rows, in one launch.

The reference is :func:`ropeswitch.kernels.apply_rows.apply_rows_reference`. Two torch ops share the kernel:

- ``ropeswitch::apply_rows_`` turns in place and never touches the values that do not turn. For code that is not compiled.
- ``ropeswitch::apply_rows`` returns new tensors. For compiled code: there an op that mutates slices of a fused projection
  costs more. With auto-functionalization as vLLM 0.32.0 sets it (``enable_auto_functionalized_v2`` off), torch 2.13 copies
  the projection twice before each call, up to the slice's end, and scatters both back after it; with torch's own default it
  copies nothing. An op that mutates nothing is one node in both, and moves the same bytes when whole heads turn.
"""

import torch
import triton
import triton.language as tl

from ropeswitch.kernels.rotate_triton import copy_heads, turn_heads
from ropeswitch.kernels.triton_launch import FUSED, blocks, check_device, check_rotation, head_layout, power_of_2, tile


# The address of a slice of row numbers must not compile the kernel anew while requests wait.
@triton.jit(do_not_specialize_on_alignment=["row_numbers"])
def apply_rows_kernel(  # type: ignore[no-untyped-def]
    query,
    query_stride,
    query_head_stride,
    key,
    key_stride,
    key_head_stride,
    query_out,
    query_out_stride,
    query_out_head_stride,
    key_out,
    key_out_stride,
    key_out_head_stride,
    rows,
    row_numbers,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    TAIL_BLOCK: tl.constexpr,
    NEOX: tl.constexpr,
):
    """One program turns ``HEADS_BLOCK`` query heads, or key heads, of one token; no key has ``KEY_HEADS`` 0.

    ``TAIL_BLOCK`` holds the values of a head that do not turn and are copied; 0 copies none.
    """
    QUERY_BLOCKS: tl.constexpr = (QUERY_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    KEY_BLOCKS: tl.constexpr = (KEY_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    # One grid dimension: the others end at 65,535 programs.
    token = (tl.program_id(0) // (QUERY_BLOCKS + KEY_BLOCKS)).to(tl.int64)
    block = tl.program_id(0) % (QUERY_BLOCKS + KEY_BLOCKS)
    row = rows + tl.load(row_numbers + token) * (2 * PAIRS)
    if block < QUERY_BLOCKS:
        head = block * HEADS_BLOCK
        source = query + token * query_stride
        target = query_out + token * query_out_stride
        turn_heads(
            source, query_head_stride, target, query_out_head_stride, row, head,
            QUERY_HEADS, HEADS_BLOCK, PAIRS, PAIRS_BLOCK, NEOX,
        )  # fmt: skip
        if TAIL_BLOCK > 0:
            copy_heads(
                source, query_head_stride, target, query_out_head_stride, head,
                QUERY_HEADS, HEADS_BLOCK, 2 * PAIRS, HEAD_SIZE, TAIL_BLOCK,
            )  # fmt: skip
    elif KEY_HEADS > 0:
        head = (block - QUERY_BLOCKS) * HEADS_BLOCK
        source = key + token * key_stride
        target = key_out + token * key_out_stride
        turn_heads(
            source, key_head_stride, target, key_out_head_stride, row, head,
            KEY_HEADS, HEADS_BLOCK, PAIRS, PAIRS_BLOCK, NEOX,
        )  # fmt: skip
        if TAIL_BLOCK > 0:
            copy_heads(
                source, key_head_stride, target, key_out_head_stride, head,
                KEY_HEADS, HEADS_BLOCK, 2 * PAIRS, HEAD_SIZE, TAIL_BLOCK,
            )  # fmt: skip


def apply_rows_triton_(
    query: torch.Tensor,
    key: torch.Tensor | None,
    rows: torch.Tensor,
    row_numbers: torch.Tensor,
    head_size: int,
    neox: bool,
) -> None:
    """Rotate ``query`` and ``key`` in place; token i turns by ``rows[row_numbers[i]]``.

    Args:
        query: ``[tokens, query heads * head_size]`` or ``[tokens, query heads, head_size]``, bfloat16, float16 or float32;
            tokens and heads may lie apart.
        key: As ``query`` with the key heads, or None.
        rows: ``[rows, rotary_dim]`` float32, contiguous, cosines then sines.
        row_numbers: ``[tokens]`` int64, contiguous, each below the number of rows; need not start at 0.
        head_size: Values per head.
        neox: How values pair up.

    Raises:
        TypeError, ValueError: A data type, a device or a shape that is not as above.
        RuntimeError: CPU tensors outside Triton's interpreter.
    """
    torch.ops.ropeswitch.apply_rows_(query, key, rows, row_numbers, head_size, neox)


def apply_rows_triton(
    query: torch.Tensor,
    key: torch.Tensor | None,
    rows: torch.Tensor,
    row_numbers: torch.Tensor,
    head_size: int,
    neox: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As :func:`apply_rows_triton_`, into new contiguous tensors of the same shapes and types."""
    turned, turned_key = torch.ops.ropeswitch.apply_rows(query, key, rows, row_numbers, head_size, neox)
    return turned, None if key is None else turned_key


def _launch(
    query: torch.Tensor,
    key: torch.Tensor | None,
    query_out: torch.Tensor,
    key_out: torch.Tensor | None,
    rows: torch.Tensor,
    row_numbers: torch.Tensor,
    head_size: int,
    neox: bool,
) -> None:
    check_device(apply_rows_kernel, query.device)
    check_rotation(query, rows, row_numbers, head_size)
    query_heads, *query_strides = head_layout("query", query, head_size, query)
    _, *query_out_strides = head_layout("query_out", query_out, head_size, query)
    key_heads, key_strides, key_out_strides = 0, [0, 0], [0, 0]
    if key is not None and key_out is not None:
        key_heads, *key_strides = head_layout("key", key, head_size, query)
        _, *key_out_strides = head_layout("key_out", key_out, head_size, query)
    pairs = rows.shape[1] // 2
    pairs_block = power_of_2(pairs)
    block, warps = tile(max(query_heads, key_heads), pairs_block)
    tail = 0 if query_out is query else head_size - 2 * pairs
    programs = query.shape[0] * (blocks(query_heads, block) + blocks(key_heads, block))
    if programs == 0:
        return
    apply_rows_kernel[(programs,)](
        query,
        *query_strides,
        key,
        *key_strides,
        query_out,
        *query_out_strides,
        key_out,
        *key_out_strides,
        rows,
        row_numbers,
        QUERY_HEADS=query_heads,
        KEY_HEADS=key_heads,
        HEADS_BLOCK=block,
        PAIRS=pairs,
        PAIRS_BLOCK=pairs_block,
        HEAD_SIZE=head_size,
        TAIL_BLOCK=power_of_2(tail),
        NEOX=neox,
        num_warps=warps,
        enable_fp_fusion=FUSED,
    )


def _in_place(
    query: torch.Tensor,
    key: torch.Tensor | None,
    rows: torch.Tensor,
    row_numbers: torch.Tensor,
    head_size: int,
    neox: bool,
) -> None:
    _launch(query, key, query, key, rows, row_numbers, head_size, neox)


def _new_tensors(query: torch.Tensor, key: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    # An op cannot return an optional tensor: no key gives an empty one.
    new = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    shape = (0,) if key is None else key.shape
    return new, torch.empty(shape, dtype=query.dtype, device=query.device)


def _out_of_place(
    query: torch.Tensor,
    key: torch.Tensor | None,
    rows: torch.Tensor,
    row_numbers: torch.Tensor,
    head_size: int,
    neox: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    query_out, key_out = _new_tensors(query, key)
    _launch(query, key, query_out, key_out, rows, row_numbers, head_size, neox)
    return query_out, key_out


_LIBRARY = torch.library.Library("ropeswitch", "FRAGMENT")
_REST = "Tensor rows, Tensor row_numbers, int head_size, bool neox"
# Any strides are read as they are; a compiler must not hand over a copy to change them.
_TAGS = (torch.Tag.needs_exact_strides,)
_LIBRARY.define(f"apply_rows_(Tensor(a!) query, Tensor(b!)? key, {_REST}) -> ()", tags=_TAGS)
_LIBRARY.define(f"apply_rows(Tensor query, Tensor? key, {_REST}) -> (Tensor, Tensor)", tags=_TAGS)
for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("apply_rows_", _in_place, _device)
    _LIBRARY.impl("apply_rows", _out_of_place, _device)
torch.library.register_fake("ropeswitch::apply_rows_", lambda *_: None, lib=_LIBRARY)
torch.library.register_fake("ropeswitch::apply_rows", lambda query, key, *_: _new_tensors(query, key), lib=_LIBRARY)
