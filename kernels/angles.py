"""Exact rotary angles at every position, from two small tables per factor set.

A position is split as ``p = coarse * FINE + fine``. Both parts' cos and sin are computed in float64 and stored as complex64
(cos + i sin); multiplying them applies the angle addition theorem. The worst error stays near 1.5e-7 at every position; an
angle computed in float32, as in vLLM and Hugging Face, is off by 0.24 at two million (see docs/architecture.md).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FINE_BITS = 12
FINE = 1 << FINE_BITS
# Table rows computed at a time; keeps the float64 scratch at startup to a tenth of the table.
CHUNK = 256


@dataclass(frozen=True)
class Frequencies:
    """One factor set's parameters for computing angles.

    Attributes:
        factors: ``[pairs]`` divisors of the inverse frequencies.
        scale: Multiplier of cos and sin.
        start_tokens: Positions below this use factor 1.
    """

    factors: tuple[float, ...]
    scale: float = 1.0
    start_tokens: int = 0


@dataclass(frozen=True)
class AngleTables:
    """``cos + i sin`` for every factor set, in two levels.

    If any set has start tokens, angles without factors follow the last set, as an extra set that covers only start tokens.

    Attributes:
        coarse: ``[sets * coarse_rows (+ rows without factors), pairs]`` complex64, at multiples of FINE.
        fine: ``[(sets or sets + 1) * FINE, pairs]`` complex64, at positions 0 to FINE - 1.
        coarse_rows: Rows of ``coarse`` per set.
        scales: ``[sets]`` float32 multipliers of cos and sin.
        start_tokens: ``[sets]`` int64; None if all are 0.
    """

    coarse: npt.NDArray[np.complex64]
    fine: npt.NDArray[np.complex64]
    coarse_rows: int
    scales: npt.NDArray[np.float32]
    start_tokens: npt.NDArray[np.int64] | None


def inverse_frequencies(theta: float, rotary_dim: int, factors: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """Return ``1 / (factors[i] * theta ** (2 i / rotary_dim))`` in float64: ``[pairs]`` radians per token.

    Source: RoFormer (arXiv:2104.09864) equation 15, rescaled as in LongRoPE (arXiv:2402.13753) equation 3.
    """
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    return 1.0 / (np.asarray(factors, dtype=np.float64) * np.float64(theta) ** exponents)


def build_tables(theta: float, rotary_dim: int, sets: tuple[Frequencies, ...], num_positions: int) -> AngleTables:
    """Build the tables for positions 0 to ``num_positions - 1`` of every set.

    Args:
        theta: The rotary base.
        rotary_dim: Rotated values per head, twice the number of factors.
        sets: One entry per factor set; set indices refer to it.
        num_positions: Number of positions to cover, at least 1.
    """
    pairs = rotary_dim // 2
    frequencies = [inverse_frequencies(theta, rotary_dim, entry.factors) for entry in sets]
    start_tokens = np.array([entry.start_tokens for entry in sets], dtype=np.int64)
    last_start = min(int(start_tokens.max()), num_positions)
    if last_start:
        frequencies.append(inverse_frequencies(theta, rotary_dim, (1.0,) * pairs))
    coarse_rows = (num_positions - 1) // FINE + 1
    coarse = np.empty((len(sets) * coarse_rows + -(-last_start // FINE), pairs), dtype=np.complex64)
    fine = np.empty((len(frequencies) * FINE, pairs), dtype=np.complex64)
    for index, each in enumerate(frequencies):
        _fill(coarse[index * coarse_rows :][:coarse_rows], each, step=FINE)
        _fill(fine[index * FINE :][:FINE], each, step=1)
    return AngleTables(
        coarse=coarse,
        fine=fine,
        coarse_rows=coarse_rows,
        scales=np.array([entry.scale for entry in sets], dtype=np.float32),
        start_tokens=start_tokens if last_start else None,
    )


def _fill(table: npt.NDArray[np.complex64], frequencies: npt.NDArray[np.float64], step: int) -> None:
    """Write cos + i sin at positions 0, ``step``, ``2 step``, ... into ``table``, ``[rows, pairs]``."""
    for first in range(0, len(table), CHUNK):
        rows = table[first : first + CHUNK]
        angles = step * np.arange(first, first + len(rows), dtype=np.float64)[:, None] * frequencies
        rows.real = np.cos(angles)
        rows.imag = np.sin(angles)
