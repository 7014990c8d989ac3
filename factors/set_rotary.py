"""Rotates a Hugging Face model with a given factor set.

Angles are exact at every length, as on the server (`ropeswitch.kernels.angles`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.kernels.angles import inverse_frequencies

# Positions whose float64 angles are in memory at once.
CHUNK = 1 << 16


def cos_sin(theta: float, factor_set: FactorSet, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of one set at int64 positions ``[n]``, each float32 ``[n, pairs]``.

    Angles are computed in float64. Positions below ``start_tokens`` have factor 1; all have the set's scale
    (LongRoPE, arXiv:2402.13753, equation 3).
    """
    pairs = len(factor_set.factors)
    scaled = torch.from_numpy(inverse_frequencies(theta, 2 * pairs, factor_set.factors))
    unscaled = torch.from_numpy(inverse_frequencies(theta, 2 * pairs, (1.0,) * pairs))
    cos = torch.empty(len(positions), pairs, dtype=torch.float32)
    sin = torch.empty_like(cos)
    for first in range(0, len(positions), CHUNK):
        part = positions[first : first + CHUNK, None]
        angles = part.double() * torch.where(part < factor_set.start_tokens, unscaled, scaled)
        cos[first : first + CHUNK] = angles.cos() * factor_set.scale
        sin[first : first + CHUNK] = angles.sin() * factor_set.scale
    return cos, sin


class SetRotary(nn.Module):
    """Replaces a model's rotary embedding."""

    def __init__(self, theta: float, factor_set: FactorSet) -> None:
        super().__init__()
        self.theta, self.factor_set = theta, factor_set

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin ``[1, n, 2 * pairs]`` with equal halves, in the dtype and on the device of ``x``.

        Every row has the positions of the first.
        """
        cos, sin = cos_sin(self.theta, self.factor_set, position_ids[0].cpu())
        return torch.cat((cos, cos), -1)[None].to(x), torch.cat((sin, sin), -1)[None].to(x)


@contextmanager
def rotated(base_model: nn.Module, theta: float, factor_set: FactorSet) -> Iterator[None]:
    """Rotate ``base_model`` (the module that owns ``rotary_emb``) with the given set inside the block."""
    own = base_model.rotary_emb
    base_model.rotary_emb = SetRotary(theta, factor_set)
    try:
        yield
    finally:
        base_model.rotary_emb = own
