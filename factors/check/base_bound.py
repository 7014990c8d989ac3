"""Computes the base bound of 'Base of RoPE Bounds Context Length' (arXiv:2405.14591).

``B(m) = sum_i cos(m theta_i)`` (theorem 1) measures how much more attention a similar token gets than a random one at
distance m. Where it is negative, the random token gets more.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Frequencies = npt.NDArray[np.float64]

# A block row holds PART * PART distances; a block has at most ROWS rows.
PART = 32
COLUMNS = PART * PART
ROWS = 64


def similarity(frequencies: Frequencies, length: int) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Yield B(m) for m from 0 to ``length`` in blocks: the first m of each block, and its values.

    Splits each distance in two and uses the angle addition theorem to turn the sum into a matrix product. A million
    distances take tens of milliseconds; the error stays near 1e-12. ``frequencies`` is ``[pairs]``, in radians per token.
    """
    parts = np.exp(1j * np.arange(PART)[:, None] * frequencies)
    jumps = np.exp(1j * PART * np.arange(PART)[:, None] * frequencies)
    turns = (jumps[:, None, :] * parts[None, :, :]).reshape(COLUMNS, -1)
    fine = np.concatenate((turns.real, -turns.imag), axis=1).T
    row, rows = 0, 1
    while row * COLUMNS <= length:
        angles = (COLUMNS * np.arange(row, row + rows))[:, None] * frequencies
        values = (np.concatenate((np.cos(angles), np.sin(angles)), axis=1) @ fine).ravel()
        yield row * COLUMNS, values[: length + 1 - row * COLUMNS]
        row, rows = row + rows, min(2 * rows, ROWS)


def first_negative(frequencies: Frequencies, length: int) -> int | None:
    """Return the first m up to ``length`` with B(m) < 0, or None; the bound holds below that m (equation 10)."""
    for start, values in similarity(frequencies, length):
        negative = values < 0
        if negative.any():
            return start + int(negative.argmax())
    return None


def count_negative(frequencies: Frequencies, length: int) -> int:
    """Count the distances m from 0 to ``length`` with B(m) < 0."""
    return sum(int((values < 0).sum()) for _, values in similarity(frequencies, length))
