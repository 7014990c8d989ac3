"""Op 1 on a GPU: compute cos and sin for every token of a step in one launch, without synchronising with the host.

The arithmetic is the CPU path's: coarse times fine as complex float32 numbers, then the set's scale. Each token finds its
request by binary search, so nothing is gathered beforehand and the launch depends only on shapes. With persistent buffers
it can be captured in a CUDA graph.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ropeswitch.kernels.angles import FINE_BITS, AngleTables
from ropeswitch.kernels.triton_launch import FUSED, check, power_of_2

# Tokens per program: few, so that a short step still spreads over the GPU.
TOKENS = 8


@dataclass(frozen=True)
class DeviceTables:
    """:class:`~ropeswitch.kernels.angles.AngleTables` on a device.

    A row of ``coarse`` or ``fine`` is ``pairs`` float32 cosines, then ``pairs`` sines, so that loads are contiguous. Start
    tokens are zeros if no set has any, so that tables loaded while serving compile no other kernel.
    """

    coarse: Tensor
    fine: Tensor
    coarse_rows: int
    scales: Tensor
    start_tokens: Tensor

    @classmethod
    def from_tables(cls, tables: AngleTables, device: torch.device | str) -> "DeviceTables":
        """Copy ``tables`` to ``device``."""
        coarse, fine = (
            torch.from_numpy(np.concatenate((level.real, level.imag), axis=1)).to(device)
            for level in (tables.coarse, tables.fine)
        )
        starts = np.zeros(len(tables.scales), np.int64) if tables.start_tokens is None else tables.start_tokens
        scales, start_tokens = (torch.from_numpy(each).to(device) for each in (tables.scales, starts))
        return cls(coarse, fine, tables.coarse_rows, scales, start_tokens)


# Arguments that change between steps, or with the tables, must not recompile the kernel while requests wait.
@triton.jit(
    do_not_specialize=["requests", "halvings", "coarse_rows", "sets", "sets_of_layer", "rows_of_layer"],
    do_not_specialize_on_alignment=["positions", "query_start_loc"],
)
def fill_rows_kernel(  # type: ignore[no-untyped-def]
    rows, positions, request_sets, query_start_loc, requests, halvings,
    coarse_table, fine_table, coarse_rows, scales, start_tokens, sets, sets_of_layer, rows_of_layer,
    PAIRS: tl.constexpr, PAIRS_BLOCK: tl.constexpr, TOKENS_BLOCK: tl.constexpr, FINE_BITS: tl.constexpr,
):  # fmt: skip
    """Fill the rows of ``TOKENS_BLOCK`` tokens of a layer per program."""
    layer = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * TOKENS_BLOCK + tl.arange(0, TOKENS_BLOCK)
    live = token < tl.load(query_start_loc + requests)
    # Find the last request that starts at or before the token: request ``low`` does, request ``high`` starts after it.
    low = tl.full((TOKENS_BLOCK,), 0, tl.int32)
    high = low + requests
    for _ in range(halvings):
        middle = (low + high) // 2
        started = tl.load(query_start_loc + middle) <= token
        low = tl.where(started, middle, low)
        high = tl.where(started, high, middle)
    chosen = tl.load(request_sets + low, mask=live, other=0).to(tl.int64) + layer * sets_of_layer
    position = tl.load(positions + token, mask=live, other=0)
    scale = tl.load(scales + chosen, mask=live, other=0.0)
    start = tl.load(start_tokens + chosen, mask=live, other=0)
    chosen = tl.where(position < start, sets, chosen)
    coarse = (chosen * coarse_rows + (position >> FINE_BITS)) * (2 * PAIRS)
    fine = ((chosen << FINE_BITS) + (position & ((1 << FINE_BITS) - 1))) * (2 * PAIRS)
    pair = tl.arange(0, PAIRS_BLOCK)[None, :]
    mask = live[:, None] & (pair < PAIRS)
    cos = tl.load(coarse_table + coarse[:, None] + pair, mask=mask, other=0.0)
    sin = tl.load(coarse_table + coarse[:, None] + PAIRS + pair, mask=mask, other=0.0)
    fine_cos = tl.load(fine_table + fine[:, None] + pair, mask=mask, other=0.0)
    fine_sin = tl.load(fine_table + fine[:, None] + PAIRS + pair, mask=mask, other=0.0)
    row = rows + (layer * rows_of_layer + token.to(tl.int64)[:, None]) * (2 * PAIRS) + pair
    tl.store(row, (cos * fine_cos - sin * fine_sin) * scale[:, None], mask=mask)
    tl.store(row + PAIRS, (cos * fine_sin + sin * fine_cos) * scale[:, None], mask=mask)


def fill_rows_triton(
    rows: Tensor, positions: Tensor, request_sets: Tensor, query_start_loc: Tensor, tables: DeviceTables
) -> None:
    """Write the rows of the step's tokens, ``rows[: query_start_loc[requests]]``, in place; later rows are unchanged.

    All tensors are on one device and contiguous. Allocates nothing and reads nothing back.

    Args:
        rows: ``[>= tokens, rotary_dim]`` float32, the step's persistent buffer; or ``[layers, >= tokens, rotary_dim]``.
        positions: ``[tokens]`` int64 true positions, each below the tables' end; padding after the last request is not read.
        request_sets: ``[requests]`` int32 or int64 factor set of each request of the batch.
        query_start_loc: ``[>= requests + 1]`` int32 first token of each request, then the end.
        tables: Angles of every set; of every set of the first layer, then of the second, and so on.

    Raises:
        TypeError, ValueError: If a dtype, device or shape differs from the above.
        RuntimeError: If tensors are on a CPU outside Triton's interpreter.
    """
    tokens, requests, rotary_dim = len(positions), len(request_sets), tables.fine.shape[1]
    layers = rows.shape[:-2].numel()
    check(
        fill_rows_kernel,
        tables.fine.device,
        ("rows", rows, (torch.float32,), (*rows.shape[:-2], max(tokens, rows.shape[-2]), rotary_dim)),
        ("positions", positions, (torch.int64,), (tokens,)),
        ("request_sets", request_sets, (torch.int32, torch.int64), (requests,)),
        ("query_start_loc", query_start_loc, (torch.int32,), (max(requests + 1, len(query_start_loc)),)),
    )
    if tokens == 0 or requests == 0:
        return
    fill_rows_kernel[(-(-tokens // TOKENS), layers)](
        rows, positions, request_sets, query_start_loc, requests, (requests - 1).bit_length(),
        tables.coarse, tables.fine, tables.coarse_rows, tables.scales, tables.start_tokens, len(tables.scales),
        len(tables.scales) // layers, rows.shape[-2],
        PAIRS=rotary_dim // 2, PAIRS_BLOCK=power_of_2(rotary_dim // 2), TOKENS_BLOCK=TOKENS, FINE_BITS=FINE_BITS,
        enable_fp_fusion=FUSED,
    )  # fmt: skip
