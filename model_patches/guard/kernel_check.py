"""Compares a GPU's kernels with the float64 reference before the engine starts, and refuses to start if they differ.

A GPU, driver or Triton that rotates wrongly would silently produce wrong tokens. The check takes milliseconds.
"""

import numpy as np
import torch
from torch import nn

from ropeswitch.kernels.angles import Frequencies
from ropeswitch.kernels.reference import apply_rows_reference, fill_rows_reference
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation
from ropeswitch.model_patches.switch.rows.step_rows import StepRows

# Kernels are exact to 2e-7 of a row's scale and to float32 rounding of a value; a wrong row or pair is off by far more.
TOLERANCE = 1e-5


def check_kernels(step_rows: StepRows, model: nn.Module, settings: RopeSettings) -> None:
    """Check a GPU's fill and rotation on a few rows; skip CPUs, and the fill for M-RoPE and Hugging Face's angles.

    Overwrites the rows, to which the model is bound.

    Raises:
        UnsupportedError: when a kernel differs from the float64 reference.
    """
    if step_rows.numbers.device.type == "cpu":
        return
    if settings.angles == "exact":
        for rotation in step_rows.by_rotation:
            if rotation.axes is None:
                _fill_and_check(step_rows, rotation, settings)
    modules = [module for module in model.modules() if isinstance(module, LadderRotaryEmbedding)]
    for module in {(each.head_size, each.rotary_dim, each.is_neox_style): each for each in modules}.values():
        _rotate_and_check(step_rows, module, with_triton="triton" in settings.parts)


def _fill_and_check(step_rows: StepRows, rotation: Rotation, settings: RopeSettings) -> None:
    of_rotation = step_rows.by_rotation[rotation].rows
    for layer, rows in enumerate(of_rotation.view(-1, *of_rotation.shape[-2:])):
        sets = rotation.sets(settings, layer)
        for index, entry in enumerate(sets):
            places = sample_positions(step_rows.max_model_len, entry.start_tokens)[: len(rows)]
            ends = torch.tensor([0, len(places)], dtype=torch.int32, device=rows.device)
            step_rows.fill(torch.tensor(places, device=rows.device), np.array([index]), ends)
            check_rows(rows[: len(places)], places, index, rotation.theta, sets)


def _rotate_and_check(step_rows: StepRows, module: LadderRotaryEmbedding, *, with_triton: bool) -> None:
    rows = module.rows
    count = min(len(rows), 4)
    angles = torch.arange(count * module.rotary_dim // 2, device=rows.device).reshape(count, -1).float()
    rows[:count] = torch.cat((angles.cos(), angles.sin()), dim=1)
    head, neox, numbers = module.head_size, module.is_neox_style, step_rows.numbers[:count]
    # Slices of one projection, as in models.
    query, key = torch.linspace(-1, 1, count * 3 * head, device=rows.device).view(count, -1).split((2 * head, head), 1)
    ops = [module(numbers, query.clone(), key.clone())]
    if with_triton:
        # The op that compiled models call.
        ops.append(torch.ops.ropeswitch.apply_rows(query, key, rows, numbers, head, neox))
    for rotated in ops:
        check_rotation(rows[:count], query, rotated[0], head, neox)
        check_rotation(rows[:count], key, rotated[1], head, neox)


def sample_positions(num_positions: int, start_tokens: int) -> list[int]:
    """Return the positions to check: ends, middle, a boundary of the tables, and around a set's start tokens."""
    wanted = {0, 1, 4095, 4096, start_tokens - 1, start_tokens, num_positions // 2, num_positions - 1}
    return sorted(place for place in wanted if 0 <= place < num_positions)


def check_rows(rows: torch.Tensor, places: list[int], index: int, theta: float, sets: tuple[Frequencies, ...]) -> None:
    """Compare ``rows``, ``[tokens, rotary_dim]`` float32 filled for set ``index`` at ``places``, with the reference.

    Raises:
        UnsupportedError: when they differ, with the device and the error.
    """
    positions = np.array(places, dtype=np.int64)
    expected = fill_rows_reference(positions, np.full(len(places), index), theta, rows.shape[1], sets)
    _require("fill_rows", rows, rows, expected, sets[index].scale)


def check_rotation(rows: torch.Tensor, before: torch.Tensor, after: torch.Tensor, head_size: int, neox: bool) -> None:
    """Compare ``after``, which is ``before``, ``[tokens, heads * head_size]`` float32, rotated by rows, with the reference.

    Raises:
        UnsupportedError: when they differ, with the device and the error.
    """
    expected = apply_rows_reference(rows.cpu(), before.cpu(), head_size, neox)
    _require("apply_rows", rows, after, expected, float(expected.abs().max()))


def _require(op: str, rows: torch.Tensor, found: torch.Tensor, expected: torch.Tensor, scale: float) -> None:
    error = float((found.cpu().double() - expected).abs().max()) / scale
    if not error < TOLERANCE:
        raise UnsupportedError(
            f"device: {rows.device}: {op} is off by {error:.1e} of the float64 reference, allowed is {TOLERANCE:.0e}; "
            "this GPU, driver or Triton cannot serve"
        )
