"""Op 2 on a GPU: rotate queries and keys by the step's rows, in one launch.

Two functions share the kernel:

- :func:`apply_rows_triton_` rotates in place and leaves values from ``rotary_dim`` on unchanged. Eager code calls it,
  bypassing torch's dispatcher.
- ``ropeswitch::apply_rows``, the op behind :func:`apply_rows_triton`, returns new tensors. Compiled code calls it, because
  mutating slices of a fused projection costs more there: with auto-functionalization as vLLM 0.32.0 sets it
  (``enable_auto_functionalized_v2`` off), torch 2.13 copies the projection twice before each call, up to the slice's end,
  and scatters both back after it. An op without mutation is one node, and moves the same bytes when whole heads rotate.

The op is opaque to Inductor, unlike a ``torch.library.triton_op``, so compiled models also run interpreted on a CPU.

FlashInfer's ``apply_rope_with_cos_sin_cache_inplace`` also takes a float32 table and row numbers, so it could replace the
in-place function for half-precision types and head sizes 64, 128, 256 and 512. That needs FlashInfer on every GPU machine
(it compiles or downloads its kernel), a functional op around it for compiled code, and a test on a GPU that it rounds once,
reads slices of a projection, can be captured and is no slower. vLLM 0.32.0 has it switched off (``use_flashinfer``).
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.driver import driver

from ropeswitch.kernels.triton_launch import FUSED, check, power_of_2

# Pairs of values rotated per program and per thread. In bf16, a thread's pairs are two loads and two stores of 16 bytes,
# the widest access.
TILE = 1024
PER_THREAD = 8
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Bytes; Triton compiles a separate kernel for pointers that are multiples of this.
ALIGNMENT = 16
# Maximum number of prepared launches (8 MiB), one per token count and layout.
MOST_PREPARED = 8192


@triton.jit
def rotate_heads(  # type: ignore[no-untyped-def]
    source, source_stride, target, target_stride, row, first_head,
    HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, HEAD_SIZE: tl.constexpr,
    PAIRS: tl.constexpr, PAIRS_BLOCK: tl.constexpr, TAIL_BLOCK: tl.constexpr, NEOX: tl.constexpr,
):  # fmt: skip
    """Rotate heads ``first_head`` to ``first_head + HEADS_BLOCK - 1`` of a token, skipping any from ``HEADS`` on.

    ``source`` and ``target`` point to value 0 of the token's head 0 and may be equal; their strides are from head to head.
    ``row`` points to the token's ``PAIRS`` float32 cosines, followed by its sines. Arithmetic is float32 with a single cast.
    """
    heads = first_head + tl.arange(0, HEADS_BLOCK)[:, None]
    pair = tl.arange(0, PAIRS_BLOCK)
    source += heads.to(tl.int64) * source_stride
    target += heads.to(tl.int64) * target_stride
    # Load the values before the row: they do not depend on the row number, and a warp issues in order.
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


# The alignment of a slice of row numbers must not recompile the kernel while requests wait.
@triton.jit(do_not_specialize_on_alignment=["row_numbers"])
def apply_rows_kernel(  # type: ignore[no-untyped-def]
    query, query_out, key, key_out, rows, row_numbers,
    query_stride, query_head_stride, query_out_stride, query_out_head_stride,
    key_stride, key_head_stride, key_out_stride, key_out_head_stride,
    QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, HEAD_SIZE: tl.constexpr,
    PAIRS: tl.constexpr, PAIRS_BLOCK: tl.constexpr, TAIL_BLOCK: tl.constexpr, NEOX: tl.constexpr,
):  # fmt: skip
    """Rotate ``HEADS_BLOCK`` query heads or key heads of one token per program.

    ``KEY_HEADS`` is 0 without a key. ``TAIL_BLOCK`` covers a head's unrotated values, which are copied; 0 copies none.
    """
    QUERY_BLOCKS: tl.constexpr = (QUERY_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    KEY_BLOCKS: tl.constexpr = (KEY_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    # A single grid dimension: the others are limited to 65,535 programs.
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
            tokens may be strided, as in a slice of a fused projection, and so may the heads of the second form.
        key: Like ``query``, with the key heads; or None.
        rows: ``[rows, rotary_dim]`` float32, contiguous, cosines then sines.
        row_numbers: ``[tokens]`` int64, contiguous, each below the number of rows; need not start at 0.
        head_size: Values per head.
        neox: Pairing of values, as in :func:`ropeswitch.kernels.apply_rows.apply_rows`.

    Raises:
        TypeError, ValueError: If a dtype, device or shape differs from the above.
        RuntimeError: If tensors are on a CPU outside Triton's interpreter.
    """
    _launch(query, key, query, key, rows, row_numbers, head_size, neox)


def apply_rows_triton(
    query: Tensor, key: Tensor | None, rows: Tensor, row_numbers: Tensor, head_size: int, neox: bool
) -> tuple[Tensor, Tensor | None]:
    """Like :func:`apply_rows_triton_`, but return new contiguous tensors of the same shapes and dtypes."""
    rotated, rotated_key = torch.ops.ropeswitch.apply_rows(query, key, rows, row_numbers, head_size, neox)
    return rotated, None if key is None else rotated_key


# A compiled kernel's launcher, number of programs, function and metadata, and all arguments except pointers.
Prepared = tuple[Callable[..., None], int, Any, Any, tuple[Any, ...]]
# Keyed by everything that is checked or compiled into a kernel.
_PREPARED: dict[tuple[Any, ...], Prepared] = {}


def _launch(
    query: Tensor, key: Tensor | None, query_out: Tensor, key_out: Tensor | None,
    rows: Tensor, row_numbers: Tensor, head_size: int, neox: bool,
) -> None:  # fmt: skip
    """Launch the kernel; check and compile it only once for tensors that differ only in their addresses.

    Triton's own launch inspects every argument and builds a key from them, which takes five times as much host time.
    """
    device = query.get_device()
    alike: tuple[Any, ...] = (
        device, query.shape, query.stride(), query.dtype,
        rows.get_device(), rows.shape, rows.is_contiguous(), rows.dtype,
        row_numbers.get_device(), row_numbers.shape, row_numbers.is_contiguous(), row_numbers.dtype,
        head_size, neox, query is query_out,
    )  # fmt: skip
    source, rows_at = query.data_ptr(), rows.data_ptr()
    target = source if query is query_out else query_out.data_ptr()
    addresses = source | target | rows_at
    key_source = key_target = None
    if key is not None and key_out is not None:
        alike += (key.get_device(), key.shape, key.stride(), key.dtype)
        key_source = key.data_ptr()
        key_target = key_source if query is query_out else key_out.data_ptr()
        addresses |= key_source | key_target
    prepared = None if addresses % ALIGNMENT else _PREPARED.get(alike)
    if prepared is None:
        prepared = _launch_checked(query, key, query_out, key_out, rows, row_numbers, head_size, neox)
        if prepared is not None and addresses % ALIGNMENT == 0:
            if len(_PREPARED) >= MOST_PREPARED:
                _PREPARED.clear()
            _PREPARED[alike] = prepared
        return
    run, programs, function, metadata, others = prepared
    run(
        programs, 1, 1, driver.active.get_current_stream(device), function, metadata, None, None, None,
        source, target, key_source, key_target, rows_at, row_numbers.data_ptr(), *others,
    )  # fmt: skip


def _launch_checked(
    query: Tensor, key: Tensor | None, query_out: Tensor, key_out: Tensor | None,
    rows: Tensor, row_numbers: Tensor, head_size: int, neox: bool,
) -> Prepared | None:  # fmt: skip
    """Check every argument and launch the kernel through Triton, which may compile it.

    Returns:
        The prepared launch, or None if nothing was compiled: without tokens, and in the interpreter.
    """
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
        return None
    tail = 0 if query_out is query else power_of_2(head_size - rotary_dim)
    # In the order of the kernel's parameters.
    others = (
        *query_strides, *query_out_strides, *key_strides, *key_out_strides,
        query_heads, key_heads, heads_block, head_size, rotary_dim // 2, pairs_block, tail, neox,
    )  # fmt: skip
    compiled = apply_rows_kernel[(programs,)](
        query, query_out, key, key_out, rows, row_numbers, *others,
        num_warps=max(1, heads_block * pairs_block // (32 * PER_THREAD)), enable_fp_fusion=FUSED,
    )  # fmt: skip
    if compiled is None:
        return None
    return compiled.run, programs, compiled.function, compiled.packed_metadata, others


def _layout(name: str, values: Tensor | None, head_size: int, like: Tensor) -> tuple[int, int, int]:
    """Return the number of heads, the stride between tokens and the stride between heads; zeros for None.

    Raises:
        ValueError: If the number of tokens differs from ``like``'s, the shape does not fit, or a head is not contiguous.
        TypeError: If the dtype or device differs from ``like``'s.
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
    contiguous = torch.contiguous_format
    # An op cannot return an optional tensor, so a missing key becomes an empty one.
    new_key = query.new_empty((0,)) if key is None else torch.empty_like(key, memory_format=contiguous)
    return torch.empty_like(query, memory_format=contiguous), new_key


def _out_of_place(query: Tensor, key: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    query_out, key_out = _new_tensors(query, key)
    _launch(query, key, query_out, None if key is None else key_out, *rest)
    return query_out, key_out


_LIBRARY = torch.library.Library("ropeswitch", "FRAGMENT")
# The kernel reads any strides; a compiler must not copy a tensor to change them.
_LIBRARY.define(
    "apply_rows(Tensor query, Tensor? key, Tensor rows, Tensor row_numbers, int head_size, bool neox) -> (Tensor, Tensor)",
    tags=(torch.Tag.needs_exact_strides,),
)
for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("apply_rows", _out_of_place, _device)
torch.library.register_fake("ropeswitch::apply_rows", lambda query, key, *_: _new_tensors(query, key), lib=_LIBRARY)
