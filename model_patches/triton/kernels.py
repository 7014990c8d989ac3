"""The Triton ops, with the interface of the core's own ops (``step_rows.py`` and ``rotary.py``)."""

import torch

from ropeswitch.kernels.angles import AngleTables

# A compiled model loaded from vLLM's cache is not traced, so nothing else would register the op that it calls.
from ropeswitch.kernels.apply_rows_triton import apply_rows_triton, apply_rows_triton_
from ropeswitch.kernels.fill_rows_triton import DeviceTables, fill_rows_triton
from ropeswitch.model_patches.switch.rows.rotary import Rotated
from ropeswitch.model_patches.switch.rows.step_rows import Filler


def filler(tables: AngleTables, device: torch.device) -> Filler:
    """Return a function that fills rows on ``device``."""
    on_device = DeviceTables.from_tables(tables, device)

    def fill(rows: torch.Tensor, positions: torch.Tensor, request_sets: torch.Tensor, starts: torch.Tensor) -> None:
        fill_rows_triton(rows, positions, request_sets, starts, on_device)

    return fill


def rotate(
    query: torch.Tensor, key: torch.Tensor | None, rows: torch.Tensor, numbers: torch.Tensor, head_size: int, neox: bool
) -> Rotated:
    """Rotate token i by ``rows[numbers[i]]``; in eager code in place, as upstream's own op does."""
    if torch.compiler.is_compiling():
        return apply_rows_triton(query, key, rows, numbers, head_size, neox)
    apply_rows_triton_(query, key, rows, numbers, head_size, neox)
    return query, key
