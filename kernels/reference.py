"""Float64 references of ops 1 and 2, for tests, benchmarks and the kernel check at startup.

Nothing that serves requests imports this module.
"""

import numpy as np
import numpy.typing as npt
import torch

from ropeswitch.kernels.angles import Frequencies, inverse_frequencies


def fill_rows_reference(
    positions: npt.NDArray[np.int64],
    set_indices: npt.NDArray[np.int64],
    theta: float,
    rotary_dim: int,
    sets: tuple[Frequencies, ...],
) -> torch.Tensor:
    """Return the rows in float64: ``[tokens, rotary_dim]``, cosines, then sines, times the set's scale.

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


def apply_rows_reference(rows: torch.Tensor, values: torch.Tensor, head_size: int, neox: bool) -> torch.Tensor:
    """Rotate in float64, one pair of values at a time.

    Args:
        rows: ``[tokens, rotary_dim]``: each token's cosines, then sines.
        values: ``[tokens, heads * head_size]`` or ``[tokens, heads, head_size]`` queries or keys.
        head_size: Values per head.
        neox: Pair value i with ``i + rotary_dim / 2``; otherwise ``2 i`` with ``2 i + 1``.

    Returns:
        The rotated values in float64, with the shape of ``values``.
    """
    pairs = rows.shape[1] // 2
    out = values.double().flatten(1).unflatten(1, (-1, head_size)).clone()
    source = out.clone()
    for i in range(pairs):
        first, second = (i, i + pairs) if neox else (2 * i, 2 * i + 1)
        cos, sin = rows[:, None, i].double(), rows[:, None, pairs + i].double()
        out[..., first] = source[..., first] * cos - source[..., second] * sin
        out[..., second] = source[..., second] * cos + source[..., first] * sin
    return out.reshape(values.shape)
