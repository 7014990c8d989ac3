"""Op 1: the cos and sin of every token of a step, each with its own sequence's factor set.

A row is ``rotary_dim`` float32 values: ``pairs`` cosines, then ``pairs`` sines, times the set's scale.
:func:`ropeswitch.kernels.reference.fill_rows_reference` makes the same rows in float64.
"""

import numpy as np
import numpy.typing as npt

from ropeswitch.kernels.angles import FINE, FINE_BITS, AngleTables


class ExactRows:
    """Fills rows on a CPU from two-level tables; scratch space is allocated once.

    Args:
        tables: The angles of every set.
        max_tokens: The most tokens a step can have.
    """

    def __init__(self, tables: AngleTables, max_tokens: int) -> None:
        self.tables = tables
        self._coarse = np.empty((max_tokens, tables.fine.shape[1]), dtype=np.complex64)
        self._fine = np.empty_like(self._coarse)
        self._scaled = bool((tables.scales != 1.0).any())

    def fill(
        self, rows: npt.NDArray[np.float32], positions: npt.NDArray[np.int64], set_indices: npt.NDArray[np.int64]
    ) -> None:
        """Write ``rows[: len(positions)]``, ``[tokens, rotary_dim]``, in place.

        Args:
            rows: ``[>= tokens, rotary_dim]`` float32, the step's persistent buffer.
            positions: ``[tokens]`` true positions, each below the tables' end.
            set_indices: ``[tokens]`` set of each token's sequence.
        """
        tables, count, pairs = self.tables, len(positions), self._fine.shape[1]
        coarse, fine = self._coarse[:count], self._fine[:count]
        chosen = set_indices
        if tables.start_tokens is not None:
            chosen = np.where(positions < tables.start_tokens[set_indices], len(tables.scales), set_indices)
        # mode="clip" skips numpy's buffered bounds check; the indices are in range by construction.
        tables.coarse.take((positions >> FINE_BITS) + chosen * tables.coarse_rows, 0, out=coarse, mode="clip")
        tables.fine.take((positions & (FINE - 1)) + chosen * FINE, 0, out=fine, mode="clip")
        coarse *= fine
        if not self._scaled:
            rows[:count, :pairs], rows[:count, pairs:] = coarse.real, coarse.imag
            return
        scales = tables.scales[set_indices, None]
        np.multiply(coarse.real, scales, out=rows[:count, :pairs])
        np.multiply(coarse.imag, scales, out=rows[:count, pairs:])
