"""Rotates a Hugging Face model with given factor sets: one for all rows of a batch, or one per row.

Angles are exact at every length, as on the server (`ropeswitch.kernels.angles`).
"""

from collections.abc import Iterator, Sequence
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
    """Replaces a model's rotary embedding: rotates batch row b with ``sets[b]``, or all rows with the only set.

    ``positions`` (int64 ``[n]``) override the model's position ids, for callers that skip positions.
    """

    def __init__(self, theta: float, sets: Sequence[FactorSet], positions: torch.Tensor | None = None) -> None:
        super().__init__()
        self.theta, self.sets, self.positions = theta, tuple(sets), positions

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin ``[rows or 1, n, 2 * pairs]`` with equal halves, in the dtype and on the device of ``x``."""
        if self.positions is None:
            rows = position_ids.cpu()
            if rows.shape[0] != len(self.sets):
                rows = rows[:1].expand(len(self.sets), -1)
        else:
            rows = self.positions.expand(len(self.sets), -1)
        made = [cos_sin(self.theta, each, row) for each, row in zip(self.sets, rows, strict=True)]
        cos, sin = (torch.stack([pair[part] for pair in made]) for part in (0, 1))
        return torch.cat((cos, cos), -1).to(x), torch.cat((sin, sin), -1).to(x)


@contextmanager
def rotated(
    base_model: nn.Module, theta: float, sets: Sequence[FactorSet], positions: torch.Tensor | None = None
) -> Iterator[None]:
    """Rotate ``base_model`` (the module that owns ``rotary_emb``) with the given sets inside the block."""
    own = base_model.rotary_emb
    base_model.rotary_emb = SetRotary(theta, sets, positions)
    try:
        yield
    finally:
        base_model.rotary_emb = own
