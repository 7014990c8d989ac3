"""Op 1 on a GPU: the cos and sin of every token of a step, in one launch and without a word to the host.

The reference is :func:`ropeswitch.kernels.fill_rows.fill_rows_reference`. The arithmetic is the CPU path's: coarse times
fine as complex float32 numbers, then the set's scale. A token finds its request by binary search, so nothing has to be
gathered before, and the launch depends on shapes alone: with persistent buffers it can be captured in a CUDA graph.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from ropeswitch.kernels.angles import FINE, FINE_BITS, AngleTables, Complex, fill_turns
from ropeswitch.kernels.triton_launch import FUSED, blocks, check_device, power_of_2

# Tokens per program: few, so that a short step still spreads over the GPU.
TOKENS = 8


@dataclass(frozen=True)
class DeviceTables:
    """:class:`~ropeswitch.kernels.angles.AngleTables` on a device; a row is ``pairs`` cosines, then ``pairs`` sines.

    Where a set has start tokens, the rows without factors follow the last set's, as one more set.

    Attributes:
        coarse: ``[sets * coarse_rows (+ rows without factors), rotary_dim]`` float32, at multiples of FINE.
        fine: ``[(sets or sets + 1) * FINE, rotary_dim]`` float32, at positions 0 to FINE - 1.
        coarse_rows: Rows of ``coarse`` that one set has.
        scales: ``[sets]`` float32 multipliers of cos and sin.
        start_tokens: ``[sets]`` int64; None where all are 0.
    """

    coarse: torch.Tensor
    fine: torch.Tensor
    coarse_rows: int
    scales: torch.Tensor
    start_tokens: torch.Tensor | None

    @classmethod
    def from_tables(cls, tables: AngleTables, device: torch.device | str) -> "DeviceTables":
        """Copy ``tables`` to ``device``."""
        coarse, fine = [tables.coarse], [tables.fine]
        starts = tables.start_tokens.any()
        if starts:
            rows = min(tables.coarse_rows, (int(tables.start_tokens.max()) - 1) // FINE + 1)
            coarse.append(np.empty((rows, tables.pairs), dtype=np.complex64))
            fine.append(np.empty((FINE, tables.pairs), dtype=np.complex64))
            fill_turns(coarse[1], tables.unscaled, step=FINE)
            fill_turns(fine[1], tables.unscaled, step=1)
        return cls(
            coarse=_rows(coarse).to(device),
            fine=_rows(fine).to(device),
            coarse_rows=tables.coarse_rows,
            scales=torch.from_numpy(tables.scales).to(device),
            start_tokens=torch.from_numpy(tables.start_tokens).to(device) if starts else None,
        )

    @property
    def nbytes(self) -> int:
        return self.coarse.nbytes + self.fine.nbytes


def _rows(parts: list[Complex]) -> torch.Tensor:
    return torch.cat([torch.from_numpy(np.concatenate((part.real, part.imag), axis=1)) for part in parts])


# Counts that change from step to step must not compile the kernel anew while requests wait.
@triton.jit(
    do_not_specialize=["requests", "halvings"],
    do_not_specialize_on_alignment=["positions", "query_start_loc"],
)
def fill_rows_kernel(  # type: ignore[no-untyped-def]
    rows,
    positions,
    request_sets,
    query_start_loc,
    requests,
    halvings,
    coarse_turns,
    fine_turns,
    coarse_rows,
    scales,
    start_tokens,
    sets,
    PAIRS: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    TOKENS_BLOCK: tl.constexpr,
    FINE_BITS: tl.constexpr,
):
    """One program fills the rows of ``TOKENS_BLOCK`` tokens."""
    token = tl.program_id(0) * TOKENS_BLOCK + tl.arange(0, TOKENS_BLOCK)
    live = token < tl.load(query_start_loc + requests)
    # The last request that starts at or before the token: ``low`` starts there or before, ``high`` after it.
    low = tl.full((TOKENS_BLOCK,), 0, tl.int32)
    high = low + requests
    for _ in range(halvings):
        middle = (low + high) // 2
        started = tl.load(query_start_loc + middle) <= token
        low = tl.where(started, middle, low)
        high = tl.where(started, high, middle)
    chosen = tl.load(request_sets + low, mask=live, other=0).to(tl.int64)
    position = tl.load(positions + token, mask=live, other=0)
    scale = tl.load(scales + chosen, mask=live, other=0.0)
    if start_tokens is not None:
        start = tl.load(start_tokens + chosen, mask=live, other=0)
        chosen = tl.where(position < start, sets, chosen)
    coarse = (chosen * coarse_rows + (position >> FINE_BITS)) * (2 * PAIRS)
    fine = ((chosen << FINE_BITS) + (position & ((1 << FINE_BITS) - 1))) * (2 * PAIRS)
    pair = tl.arange(0, PAIRS_BLOCK)[None, :]
    mask = live[:, None] & (pair < PAIRS)
    cos = tl.load(coarse_turns + coarse[:, None] + pair, mask=mask, other=0.0)
    sin = tl.load(coarse_turns + coarse[:, None] + PAIRS + pair, mask=mask, other=0.0)
    fine_cos = tl.load(fine_turns + fine[:, None] + pair, mask=mask, other=0.0)
    fine_sin = tl.load(fine_turns + fine[:, None] + PAIRS + pair, mask=mask, other=0.0)
    row = rows + token.to(tl.int64)[:, None] * (2 * PAIRS) + pair
    tl.store(row, (cos * fine_cos - sin * fine_sin) * scale[:, None], mask=mask)
    tl.store(row + PAIRS, (cos * fine_sin + sin * fine_cos) * scale[:, None], mask=mask)


def fill_rows_triton(
    rows: torch.Tensor,
    positions: torch.Tensor,
    request_sets: torch.Tensor,
    query_start_loc: torch.Tensor,
    tables: DeviceTables,
) -> None:
    """Write the rows of the step's tokens, ``rows[: query_start_loc[requests]]``, in place; later rows keep what they hold.

    All tensors are on one device and contiguous. Nothing is allocated and nothing read back.

    Args:
        rows: ``[>= tokens, rotary_dim]`` float32, the step's persistent buffer.
        positions: ``[tokens]`` int64 true positions, each below the tables' end; padding after the last request is not read.
        request_sets: ``[requests]`` int32 or int64, the factor set of each request of the batch.
        query_start_loc: ``[>= requests + 1]`` int32, first token of each request, then the end.
        tables: Angles of every set.

    Raises:
        TypeError, ValueError: A data type or a shape that is not as above.
        RuntimeError: CPU tensors outside Triton's interpreter.
    """
    check_device(fill_rows_kernel, rows.device)
    requests = len(request_sets)
    _check(rows, positions, request_sets, query_start_loc, tables)
    if len(positions) == 0 or requests == 0:
        return
    pairs = rows.shape[1] // 2
    fill_rows_kernel[(blocks(len(positions), TOKENS),)](
        rows,
        positions,
        request_sets,
        query_start_loc,
        requests,
        (requests - 1).bit_length(),
        tables.coarse,
        tables.fine,
        tables.coarse_rows,
        tables.scales,
        tables.start_tokens,
        len(tables.scales),
        PAIRS=pairs,
        PAIRS_BLOCK=power_of_2(pairs),
        TOKENS_BLOCK=TOKENS,
        FINE_BITS=FINE_BITS,
        enable_fp_fusion=FUSED,
    )


def _check(
    rows: torch.Tensor,
    positions: torch.Tensor,
    request_sets: torch.Tensor,
    query_start_loc: torch.Tensor,
    tables: DeviceTables,
) -> None:
    requests = len(request_sets)
    for name, tensor, dtypes, shape in (
        ("rows", rows, (torch.float32,), (max(len(positions), len(rows)), tables.fine.shape[1])),
        ("positions", positions, (torch.int64,), (len(positions),)),
        ("request_sets", request_sets, (torch.int32, torch.int64), (requests,)),
        ("query_start_loc", query_start_loc, (torch.int32,), (max(requests + 1, len(query_start_loc)),)),
    ):
        if tensor.dtype not in dtypes:
            raise TypeError(f"{name} has dtype {tensor.dtype}, but must be {' or '.join(map(str, dtypes))}")
        if tensor.shape != shape or not tensor.is_contiguous() or tensor.device != tables.fine.device:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()} on {tensor.device}, but must be "
                f"contiguous {list(shape)} on {tables.fine.device}"
            )
