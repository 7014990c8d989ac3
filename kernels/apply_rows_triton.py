"""Op 2 on a GPU: rotate queries and keys with the step's rows, in one launch.

Two torch ops share the kernel:

- ``ropeswitch::apply_rows_`` rotates in place and leaves values from ``rotary_dim`` on alone. For code that is not compiled.
- ``ropeswitch::apply_rows`` returns new tensors. For compiled code: there an op that mutates slices of a fused projection
  costs more. With auto-functionalization as vLLM 0.32.0 sets it (``enable_auto_functionalized_v2`` off), torch 2.13 copies
  the projection twice before each call, up to the slice's end, and scatters both back after it; with torch's own default it
  copies nothing. An op that mutates nothing is one node in both, and moves the same bytes when whole heads rotate.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ropeswitch.kernels.triton_launch import FUSED, check, power_of_2

# Pairs of values that one program rotates, and that one of its threads rotates: 16 bytes of bf16 at a time, the widest
# access there is, twice in and twice out.
TILE = 1024
PER_THREAD = 8
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def rotate_heads(  # type: ignore[no-untyped-def]
    source, source_stride, target, target_stride, row, first_head,
    HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, HEAD_SIZE: tl.constexpr,
    PAIRS: tl.constexpr, PAIRS_BLOCK: tl.constexpr, TAIL_BLOCK: tl.constexpr, NEOX: tl.constexpr,
):  # fmt: skip
    """Rotate heads ``first_head`` to ``first_head + HEADS_BLOCK - 1`` of a token, as far as they are below ``HEADS``.

    ``source`` and ``target`` point to value 0 of the token's head 0, and may be one; their strides go from head to head.
    ``row`` points to the token's ``PAIRS`` float32 cosines, followed by its sines. Arithmetic is float32, cast once.
    """
    heads = first_head + tl.arange(0, HEADS_BLOCK)[:, None]
    pair = tl.arange(0, PAIRS_BLOCK)
    source += heads.to(tl.int64) * source_stride
    target += heads.to(tl.int64) * target_stride
    # Load the values before the row: they do not wait for the row number, and a warp issues in order.
    if NEOX:
        mask = (heads < HEADS) & (pair < PAIRS)[None, :]
        first = tl.load(source + pair[None, :], mask=mask, other=0.0)
        second = tl.load(source + PAIRS + pair[None, :], mask=mask, other=0.0)
    else:
        value = tl.arange(0, 2 * PAIRS_BLOCK)[None, :]
        mask = (heads < HEADS) & (value < 2 * PAIRS)
        both = tl.load(source + value, mask=mask, other=0.0)
        first, second = tl.split(tl.reshape(both, (HEADS_BLOCK, PAIRS_BLOCK, 2)))
    cos = tl.load(row + pair, mask=pair < PAIRS, other=0.0)[None, :]
    sin = tl.load(row + PAIRS + pair, mask=pair < PAIRS, other=0.0)[None, :]
    first = first.to(tl.float32)
    second = second.to(tl.float32)
    left = (first * cos - second * sin).to(target.dtype.element_ty)
    right = (second * cos + first * sin).to(target.dtype.element_ty)
    if NEOX:
        tl.store(target + pair[None, :], left, mask=mask)
        tl.store(target + PAIRS + pair[None, :], right, mask=mask)
    else:
        tl.store(target + value, tl.reshape(tl.join(left, right), (HEADS_BLOCK, 2 * PAIRS_BLOCK)), mask=mask)
    if TAIL_BLOCK > 0:
        tail = 2 * PAIRS + tl.arange(0, TAIL_BLOCK)[None, :]
        in_tail = (heads < HEADS) & (tail < HEAD_SIZE)
        tl.store(target + tail, tl.load(source + tail, mask=in_tail), mask=in_tail)


# The address of a slice of row numbers must not compile the kernel anew while requests wait.
@triton.jit(do_not_specialize_on_alignment=["row_numbers"])
def apply_rows_kernel(  # type: ignore[no-untyped-def]
    query, query_stride, query_head_stride, query_out, query_out_stride, query_out_head_stride,
    key, key_stride, key_head_stride, key_out, key_out_stride, key_out_head_stride,
    rows, row_numbers,
    QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, HEAD_SIZE: tl.constexpr,
    PAIRS: tl.constexpr, PAIRS_BLOCK: tl.constexpr, TAIL_BLOCK: tl.constexpr, NEOX: tl.constexpr,
):  # fmt: skip
    """One program rotates ``HEADS_BLOCK`` query heads, or key heads, of one token.

    ``KEY_HEADS`` is 0 where there is no key. ``TAIL_BLOCK`` holds the values of a head that are copied and not rotated; 0
    copies none.
    """
    QUERY_BLOCKS: tl.constexpr = (QUERY_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    KEY_BLOCKS: tl.constexpr = (KEY_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    # One grid dimension: the others end at 65,535 programs.
    token = (tl.program_id(0) // (QUERY_BLOCKS + KEY_BLOCKS)).to(tl.int64)
    block = tl.program_id(0) % (QUERY_BLOCKS + KEY_BLOCKS)
    row = rows + tl.load(row_numbers + token) * (2 * PAIRS)
    if block < QUERY_BLOCKS:
        rotate_heads(
            query + token * query_stride, query_head_stride, query_out + token * query_out_stride, query_out_head_stride,
            row, block * HEADS_BLOCK, QUERY_HEADS, HEADS_BLOCK, HEAD_SIZE, PAIRS, PAIRS_BLOCK, TAIL_BLOCK, NEOX,
        )  # fmt: skip
    elif KEY_HEADS > 0:
        rotate_heads(
            key + token * key_stride, key_head_stride, key_out + token * key_out_stride, key_out_head_stride,
            row, (block - QUERY_BLOCKS) * HEADS_BLOCK,
            KEY_HEADS, HEADS_BLOCK, HEAD_SIZE, PAIRS, PAIRS_BLOCK, TAIL_BLOCK, NEOX,
        )  # fmt: skip


def apply_rows_triton_(
    query: Tensor, key: Tensor | None, rows: Tensor, row_numbers: Tensor, head_size: int, neox: bool
) -> None:
    """Rotate ``query`` and ``key`` in place, token i by ``rows[row_numbers[i]]``.

    Args:
        query: ``[tokens, query heads * head_size]`` or ``[tokens, query heads, head_size]``, bfloat16, float16 or float32;
            tokens may lie apart, as in a slice of a fused projection, and so may the heads of the second form.
        key: As ``query`` with the key heads, or None.
        rows: ``[rows, rotary_dim]`` float32, contiguous, cosines then sines.
        row_numbers: ``[tokens]`` int64, contiguous, each below the number of rows; need not start at 0.
        head_size: Values per head.
        neox: How values pair up, as in :func:`ropeswitch.kernels.apply_rows.apply_rows`.

    Raises:
        TypeError, ValueError: A data type, a device or a shape that is not as above.
        RuntimeError: CPU tensors outside Triton's interpreter.
    """
    torch.ops.ropeswitch.apply_rows_(query, key, rows, row_numbers, head_size, neox)


def apply_rows_triton(
    query: Tensor, key: Tensor | None, rows: Tensor, row_numbers: Tensor, head_size: int, neox: bool
) -> tuple[Tensor, Tensor | None]:
    """As :func:`apply_rows_triton_`, into new contiguous tensors of the same shapes and types."""
    rotated, rotated_key = torch.ops.ropeswitch.apply_rows(query, key, rows, row_numbers, head_size, neox)
    return rotated, None if key is None else rotated_key


def _launch(
    query: Tensor, key: Tensor | None, query_out: Tensor, key_out: Tensor | None,
    rows: Tensor, row_numbers: Tensor, head_size: int, neox: bool,
) -> None:  # fmt: skip
    rotary_dim = rows.shape[-1]
    if query.dtype not in DTYPES:
        raise TypeError(f"query has dtype {query.dtype}, but must be bfloat16, float16 or float32")
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise ValueError(f"rows has rotary_dim {rotary_dim}, but must be even and at most head_size {head_size}")
    check(
        apply_rows_kernel,
        query.device,
        ("rows", rows, (torch.float32,), (len(rows), rotary_dim)),
        ("row_numbers", row_numbers, (torch.int64,), (len(query),)),
    )
    query_heads, *query_strides = _layout("query", query, head_size, query)
    _, *query_out_strides = _layout("query_out", query_out, head_size, query)
    key_heads, *key_strides = _layout("key", key, head_size, query)
    _, *key_out_strides = _layout("key_out", key_out, head_size, query)
    pairs_block = power_of_2(rotary_dim // 2)
    heads_block = min(max(1, TILE // pairs_block), power_of_2(max(query_heads, key_heads)))
    programs = len(query) * (-(-query_heads // heads_block) - (-key_heads // heads_block))
    if programs == 0:
        return
    apply_rows_kernel[(programs,)](
        query, *query_strides, query_out, *query_out_strides,
        key, *key_strides, key_out, *key_out_strides,
        rows, row_numbers,
        QUERY_HEADS=query_heads, KEY_HEADS=key_heads, HEADS_BLOCK=heads_block, HEAD_SIZE=head_size,
        PAIRS=rotary_dim // 2, PAIRS_BLOCK=pairs_block, NEOX=neox,
        TAIL_BLOCK=0 if query_out is query else power_of_2(head_size - rotary_dim),
        num_warps=max(1, heads_block * pairs_block // (32 * PER_THREAD)), enable_fp_fusion=FUSED,
    )  # fmt: skip


def _layout(name: str, values: Tensor | None, head_size: int, like: Tensor) -> tuple[int, int, int]:
    """How many heads a token has, and the strides from token to token and from head to head; zeros for None.

    Raises:
        ValueError: Another number of tokens than ``like`` has, or values of one head that do not lie side by side.
        TypeError: Another data type or device than that of ``like``.
    """
    if values is None:
        return 0, 0, 0
    if values.dtype != like.dtype or values.device != like.device:
        raise TypeError(f"{name} is {values.dtype} on {values.device}, but must be {like.dtype} on {like.device}")
    if values.shape[0] == like.shape[0] and values.stride(-1) == 1:
        if values.dim() == 3 and values.shape[2] == head_size:
            return values.shape[1], values.stride(0), values.stride(1)
        if values.dim() == 2 and values.shape[1] % head_size == 0:
            return values.shape[1] // head_size, values.stride(0), head_size
    raise ValueError(
        f"{name} has shape {tuple(values.shape)} and strides {values.stride()}, but must be [{like.shape[0]}, heads * "
        f"{head_size}] or [{like.shape[0]}, heads, {head_size}] with the values of a head side by side"
    )


def _new_tensors(query: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
    # An op cannot return an optional tensor: no key gives an empty one.
    return query.new_empty(query.shape), query.new_empty((0,) if key is None else key.shape)


def _in_place(query: Tensor, key: Tensor | None, *rest: Any) -> None:
    _launch(query, key, query, key, *rest)


def _out_of_place(query: Tensor, key: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    query_out, key_out = _new_tensors(query, key)
    _launch(query, key, query_out, None if key is None else key_out, *rest)
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
