"""Rotates a Hugging Face model with given factor sets: one for all rows of a batch, or one for each.

The angles are exact (`ropeswitch.kernels.angles`), as the server's are, whatever the length.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.kernels.angles import inverse_frequencies

# Positions whose float64 angles are held at a time.
CHUNK = 1 << 16


def cos_sin(theta: float, factor_set: FactorSet, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of one set at the given positions, float32, each ``[n, pairs]``; positions is int64 ``[n]``.

    Made from float64 angles; positions below ``start_tokens`` have factor 1 and all have the set's scale
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
    """Stands in for a model's rotary embedding; row b of a batch is rotated with ``sets[b]``, or all with ``sets[0]``.

    ``positions`` (int64 ``[n]``) replace the model's own, which a caller that skips positions needs.
    """

    def __init__(self, theta: float, sets: Sequence[FactorSet], positions: torch.Tensor | None = None) -> None:
        super().__init__()
        self.theta, self.sets, self.positions = theta, tuple(sets), positions

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x gives dtype and device; cos and sin of ``[rows or 1, n, 2 * pairs]``, both halves alike."""
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
    """Within the block ``base_model`` (what holds ``rotary_emb``) rotates with the given sets."""
    own = base_model.rotary_emb
    base_model.rotary_emb = SetRotary(theta, sets, positions)
    try:
        yield
    finally:
        base_model.rotary_emb = own
