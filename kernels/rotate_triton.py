"""What the Triton ops do with one token's heads: turn them in float32 and cast once, or copy them.

Values i and ``i + PAIRS`` make a pair (``NEOX``: GPT-NeoX, Llama, Phi), or ``2 i`` and ``2 i + 1`` (GPT-J).
"""

import triton
import triton.language as tl


@triton.jit
def turn_heads(  # type: ignore[no-untyped-def]
    source,
    source_stride,
    target,
    target_stride,
    row,
    first_head,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    NEOX: tl.constexpr,
):
    """Turn heads ``first_head`` to ``first_head + HEADS_BLOCK - 1`` of a token, as far as they are below ``HEADS``.

    ``source`` and ``target`` point to value 0 of the token's head 0, and may be one; their strides go from head to head.
    ``row`` points to the token's ``PAIRS`` float32 cosines, followed by its sines. Values from ``2 * PAIRS`` on are left.
    """
    heads = first_head + tl.arange(0, HEADS_BLOCK)[:, None]
    pair = tl.arange(0, PAIRS_BLOCK)
    source += heads.to(tl.int64) * source_stride
    target += heads.to(tl.int64) * target_stride
    # The values are asked for before the row: they do not wait for the row number, and a warp issues in order.
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


@triton.jit
def copy_heads(  # type: ignore[no-untyped-def]
    source,
    source_stride,
    target,
    target_stride,
    first_head,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    FIRST: tl.constexpr,
    END: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy values ``FIRST`` to ``END - 1`` of the heads that :func:`turn_heads` would turn; ``BLOCK`` holds them."""
    heads = first_head + tl.arange(0, HEADS_BLOCK)[:, None]
    value = FIRST + tl.arange(0, BLOCK)[None, :]
    mask = (heads < HEADS) & (value < END)
    values = tl.load(source + heads.to(tl.int64) * source_stride + value, mask=mask)
    tl.store(target + heads.to(tl.int64) * target_stride + value, values, mask=mask)
