"""Op 1: compute cos and sin for every token of a step, with its sequence's factor set.

A row is ``rotary_dim`` float32 values: ``pairs`` cosines, then ``pairs`` sines, times the set's scale.
:func:`ropeswitch.kernels.reference.fill_rows_reference` computes the same rows in float64.
"""

import torch

from ropeswitch.kernels.angles import FINE, FINE_BITS, AngleTables


class ExactRows:
    """Fills rows on any device from two-level tables, without synchronising with the host.

    Args:
        tables: Angles of every set.
        device: Device of the rows.
    """

    def __init__(self, tables: AngleTables, device: torch.device | str = "cpu") -> None:
        self._coarse = torch.from_numpy(tables.coarse).to(device)
        self._fine = torch.from_numpy(tables.fine).to(device)
        self._coarse_rows = tables.coarse_rows
        self._scales = torch.from_numpy(tables.scales).to(device)
        starts = tables.start_tokens
        self._start_tokens = None if starts is None else torch.from_numpy(starts).to(device)

    def fill(self, rows: torch.Tensor, positions: torch.Tensor, set_indices: torch.Tensor) -> None:
        """Write ``rows[:tokens]`` in place.

        Args:
            rows: ``[>= tokens, rotary_dim]`` float32, the step's persistent buffer; or ``[layers, >= tokens, rotary_dim]``.
            positions: ``[tokens]`` int64 true positions, each below the tables' end.
            set_indices: ``[tokens]`` int64 factor set of each token's sequence; or ``[layers, tokens]``.
        """
        chosen, count, pairs = set_indices, len(positions), self._fine.shape[1]
        if self._start_tokens is not None:
            chosen = torch.where(positions < self._start_tokens[chosen], len(self._scales), chosen)
        angles = self._coarse.index_select(0, ((positions >> FINE_BITS) + chosen * self._coarse_rows).flatten())
        angles *= self._fine.index_select(0, ((positions & (FINE - 1)) + chosen * FINE).flatten())
        angles, scales = angles.view(*chosen.shape, pairs), self._scales[set_indices][..., None]
        torch.mul(angles.real, scales, out=rows[..., :count, :pairs])
        torch.mul(angles.imag, scales, out=rows[..., :count, pairs:])
