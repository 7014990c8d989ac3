"""Computes the largest error of cos and sin at a length (arXiv:2411.13476)."""

from dataclasses import dataclass

import torch

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.axis_rows import AxisRows
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.kernels.reference import fill_rows_reference

# The last positions before a length stand for all: float32 errors grow with the position; the others do not.
LAST = 1 << 13


@dataclass(frozen=True)
class Precision:
    """Largest absolute errors of cos and sin against float64, over the last 8,192 positions before ``length``.

    Attributes:
        length: Length in tokens.
        float32: Angles computed in float32, as in Hugging Face.
        bfloat16: The same, with cos and sin rounded to bfloat16, as in Hugging Face for a bfloat16 model.
        bfloat16_exact: Exact angles, with cos and sin rounded to bfloat16.
        ours: The server's cos and sin.
    """

    length: int
    float32: float
    bfloat16: float
    bfloat16_exact: float
    ours: float


def precision(theta: float, factor_set: FactorSet, length: int) -> Precision:
    """Return the errors of one set's cos and sin before ``length``, without its scale and start tokens."""
    rotary_dim = 2 * len(factor_set.factors)
    sets = (Frequencies(factor_set.factors),)
    ours = ExactRows(build_tables(theta, rotary_dim, sets, length))
    hugging_face = AxisRows(theta, rotary_dim, sets, dtype=torch.float32)
    positions = torch.arange(max(0, length - LAST), length)
    indices = torch.zeros_like(positions)
    exact = fill_rows_reference(positions.numpy(), indices.numpy(), theta, rotary_dim, sets)
    made = torch.empty(len(positions), rotary_dim)
    ours.fill(made, positions, indices)
    float32 = torch.empty_like(made)
    hugging_face.fill(float32, positions, indices)
    rounded = (float32, float32.bfloat16(), exact.bfloat16(), made)
    return Precision(length, *(float((values.double() - exact).abs().max()) for values in rounded))
