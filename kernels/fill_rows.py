"""Op 1: the cos and sin of every token of a step, each with its own sequence's factor set.

A row is ``rotary_dim`` float32 values: ``pairs`` cosines, then ``pairs`` sines, times the set's scale. The reference says
what a row is; the CPU path makes the same rows from :class:`~ropeswitch.kernels.angles.AngleTables`.
"""

import numpy as np
import numpy.typing as npt
import torch

from ropeswitch.kernels.angles import FINE, FINE_BITS, AngleTables, Frequencies, inverse_frequencies


def fill_rows_reference(
    positions: npt.NDArray[np.int64],
    set_indices: npt.NDArray[np.int64],
    theta: float,
    rotary_dim: int,
    sets: tuple[Frequencies, ...],
) -> torch.Tensor:
    """The rows in float64: ``[tokens, rotary_dim]``, cosines then sines.

    Args:
        positions: ``[tokens]`` true positions.
        set_indices: ``[tokens]`` indices into ``sets``.
        theta: The rotary base.
        rotary_dim: Rotated values per head.
        sets: The factor sets.
    """
    rows = np.empty((len(positions), rotary_dim), dtype=np.float64)
    for index, entry in enumerate(sets):
        unscaled = positions < entry.start_tokens
        for mask, factors in ((~unscaled, entry.factors), (unscaled, (1.0,) * (rotary_dim // 2))):
            chosen = (set_indices == index) & mask
            angles = positions[chosen, None].astype(np.float64) * inverse_frequencies(theta, rotary_dim, factors)
            rows[chosen] = np.concatenate((np.cos(angles), np.sin(angles)), axis=1) * entry.scale
    return torch.from_numpy(rows)


class ExactRows:
    """Fills rows on a CPU from two-level tables; scratch space is allocated once.

    Args:
        tables: The angles of every set.
        max_tokens: The most tokens a step can have.
    """

    def __init__(self, tables: AngleTables, max_tokens: int) -> None:
        self.tables = tables
        self._coarse = np.empty((max_tokens, tables.pairs), dtype=np.complex64)
        self._fine = np.empty_like(self._coarse)
        self._scaled = bool((tables.scales != 1.0).any())
        self._max_start = int(tables.start_tokens.max())

    def fill(
        self, rows: npt.NDArray[np.float32], positions: npt.NDArray[np.int64], set_indices: npt.NDArray[np.int64]
    ) -> None:
        """Write ``rows[: len(positions)]``, ``[tokens, rotary_dim]``, in place.

        Args:
            rows: ``[>= tokens, rotary_dim]`` float32, the step's persistent buffer.
            positions: ``[tokens]`` true positions, each below the tables' end.
            set_indices: ``[tokens]`` set of each token's sequence.
        """
        tables, count = self.tables, len(positions)
        coarse, fine = self._coarse[:count], self._fine[:count]
        # mode="clip" skips numpy's buffered bounds check; the indices are in range by construction.
        tables.coarse.take((positions >> FINE_BITS) + set_indices * tables.coarse_rows, 0, out=coarse, mode="clip")
        tables.fine.take((positions & (FINE - 1)) + set_indices * FINE, 0, out=fine, mode="clip")
        coarse *= fine
        if self._max_start:
            unscaled = np.flatnonzero(positions < tables.start_tokens[set_indices])
            if len(unscaled):
                # So few tokens of a prompt that no table pays; in float64, as the tables are made.
                coarse[unscaled] = np.exp(1j * positions[unscaled, None] * tables.unscaled)
        out = rows[:count]
        if self._scaled:
            scales = tables.scales[set_indices, None]
            np.multiply(coarse.real, scales, out=out[:, : tables.pairs])
            np.multiply(coarse.imag, scales, out=out[:, tables.pairs :])
        else:
            out[:, : tables.pairs] = coarse.real
            out[:, tables.pairs :] = coarse.imag


class ParityRows:
    """Fills rows with Hugging Face's own float32 arithmetic, for comparison with it.

    The angle is a float32 product of a float32 inverse frequency and a float32 position
    (``transformers.modeling_rope_utils._compute_longrope_parameters`` and ``Phi3RotaryEmbedding.forward``).
    """

    def __init__(
        self, theta: float, rotary_dim: int, sets: tuple[Frequencies, ...], device: torch.device | str = "cpu"
    ) -> None:
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64, device=device).float() / rotary_dim
        factors = torch.tensor([entry.factors for entry in sets], dtype=torch.float32, device=device)
        self._inverse = 1.0 / (factors * theta**exponents)
        self._unscaled = 1.0 / theta**exponents
        self._scales = torch.tensor([entry.scale for entry in sets], dtype=torch.float32, device=device)
        self._start_tokens = torch.tensor([entry.start_tokens for entry in sets], device=device)

    def fill(self, rows: torch.Tensor, positions: torch.Tensor, set_indices: torch.Tensor) -> None:
        """As :meth:`ExactRows.fill`, with tensors of the device."""
        inverse = torch.where(
            (positions < self._start_tokens[set_indices])[:, None], self._unscaled, self._inverse[set_indices]
        )
        angles = positions.float()[:, None] * inverse
        scales = self._scales[set_indices][:, None]
        pairs, out = inverse.shape[1], rows[: len(positions)]
        out[:, :pairs] = angles.cos() * scales
        out[:, pairs:] = angles.sin() * scales
