"""Rows with Hugging Face's own float32 angles (``--rope-angles hf``), for token-for-token comparison with its models."""

import torch

from ropeswitch.kernels.angles import Frequencies


class ParityRows:
    """Fills rows as ``transformers`` does: a float32 inverse frequency times a float32 position.

    See ``transformers.modeling_rope_utils._compute_longrope_parameters`` and ``Phi3RotaryEmbedding.forward``.
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
        """Like :meth:`ropeswitch.kernels.fill_rows.ExactRows.fill`; all tensors are on the device."""
        early = positions < self._start_tokens[set_indices]
        inverse = torch.where(early[:, None], self._unscaled, self._inverse[set_indices])
        angles = positions.float()[:, None] * inverse
        scales = self._scales[set_indices, None]
        torch.cat((angles.cos() * scales, angles.sin() * scales), dim=1, out=rows[: len(positions)])
