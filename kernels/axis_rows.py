"""Rows whose angles are computed from positions directly, without tables.

- For M-RoPE: each pair of a token is rotated by its position on one of several axes (time, height, width). Positions on an
  axis are not bounded by the number of tokens: a video's time axis skips ahead.
- For a draft model's layers.
- In float32, for Hugging Face's own angles (``--rope-angles hf``), to compare with its models token for token.
"""

import torch

from ropeswitch.kernels.angles import Frequencies


class AxisRows:
    """Fills rows from positions on one or several axes.

    Sources: Qwen2-VL (arXiv:2409.12191) section 2.1; ``MRotaryEmbedding.forward_native`` of vLLM. For float32,
    ``transformers.modeling_rope_utils._compute_longrope_parameters`` and ``Phi3RotaryEmbedding.forward``.

    Args:
        theta: The rotary base.
        rotary_dim: Rotated values per head.
        sets: One entry per factor set.
        axes: ``[pairs]`` axis whose position rotates each pair; None for the first axis.
        device: Device of the rows.
        dtype: Dtype of frequencies and angles: float64, or float32 for Hugging Face's own angles.
    """

    def __init__(
        self,
        theta: float,
        rotary_dim: int,
        sets: tuple[Frequencies, ...],
        axes: tuple[int, ...] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64, device=device).to(dtype) / rotary_dim
        factors = torch.tensor([entry.factors for entry in sets], dtype=dtype, device=device)
        self._inverse = 1.0 / (factors * theta**exponents)
        self._unscaled = 1.0 / theta**exponents
        self._scales = torch.tensor([entry.scale for entry in sets], dtype=torch.float32, device=device)
        self._start_tokens = torch.tensor([entry.start_tokens for entry in sets], device=device)
        self._axes = torch.tensor(axes or (0,) * (rotary_dim // 2), dtype=torch.int64, device=device)

    def fill(self, rows: torch.Tensor, positions: torch.Tensor, set_indices: torch.Tensor) -> None:
        """Write ``rows[:tokens]`` in place.

        Args:
            rows: ``[>= tokens, rotary_dim]`` float32, the step's persistent buffer; or ``[layers, >= tokens, rotary_dim]``.
            positions: ``[axes, tokens]`` int64 true positions, or ``[tokens]`` where they are the same on every axis.
            set_indices: ``[tokens]`` int64 factor set of each token's sequence; or ``[layers, tokens]``.
        """
        places = positions[:, None] if positions.dim() == 1 else positions.index_select(0, self._axes).T
        early = places < self._start_tokens[set_indices][..., None]
        inverse = torch.where(early, self._unscaled, self._inverse[set_indices])
        angles = places.to(inverse.dtype) * inverse
        scales, pairs = self._scales[set_indices][..., None], len(self._axes)
        rows[..., : len(places), :pairs] = angles.cos().float() * scales
        rows[..., : len(places), pairs:] = angles.sin().float() * scales
