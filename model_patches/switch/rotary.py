"""The rotary module that replaces every layer's own: token i turns by row i of the step.

The runner hands the model row numbers as ``positions`` and keeps the rows up to date (``step_rows.py``), so a layer
looks up nothing by length, and any number of factor sets in a batch costs the same.
"""

import torch
from torch import nn

from ropeswitch.kernels.apply_rows import apply_rows
from ropeswitch.model_patches.switch.settings import UnsupportedError

Rotated = tuple[torch.Tensor, torch.Tensor | None]


class LadderRotaryEmbedding(nn.Module):
    """Stands in for ``vllm.model_executor.layers.rotary_embedding.RotaryEmbedding`` and its kin.

    Args:
        head_size: Values per head.
        rotary_dim: Rotated values per head.
        neox: How values pair up.

    Attributes:
        rows: ``[max tokens of a step, rotary_dim]`` float32, cosines then sines. The runner puts its own buffer here when
            the model is loaded and writes it before each forward.
        with_triton: Whether the model is on a GPU, where one Triton launch rotates queries and keys.
    """

    rows: torch.Tensor
    with_triton = False

    def __init__(self, head_size: int, rotary_dim: int, neox: bool) -> None:
        super().__init__()
        self.head_size = head_size
        self.rotary_dim = rotary_dim
        self.is_neox_style = neox
        self.register_buffer("rows", torch.empty(0, rotary_dim, dtype=torch.float32), persistent=False)

    def forward(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) -> Rotated:
        """Rotate ``query`` and ``key``.

        Args:
            positions: ``[tokens]`` int64 row numbers, not places in the sequence.
            query: ``[tokens, query heads * head_size]`` or ``[tokens, query heads, head_size]``.
            key: As ``query`` with the key heads, or None.
        """
        if self.with_triton:
            return _with_triton(query, key, self.rows, positions, self.head_size, self.is_neox_style)
        return apply_rows(self.rows.index_select(0, positions), query, key, self.head_size, self.is_neox_style)

    @property
    def cos_sin_cache(self) -> torch.Tensor:
        """Upstream's table of angles by position, which some models read themselves; there is none here.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("model: reads cos_sin_cache by itself, where a ladder has no angles by position")

    def extra_repr(self) -> str:
        return f"head_size={self.head_size}, rotary_dim={self.rotary_dim}, neox={self.is_neox_style}"


def _with_triton(
    query: torch.Tensor, key: torch.Tensor | None, rows: torch.Tensor, numbers: torch.Tensor, head_size: int, neox: bool
) -> Rotated:
    # Not every CPU install has Triton.
    from ropeswitch.kernels.apply_rows_triton import apply_rows_triton, apply_rows_triton_

    if torch.compiler.is_compiling():
        return apply_rows_triton(query, key, rows, numbers, head_size, neox)
    # As upstream's own op does where nothing is compiled.
    apply_rows_triton_(query, key, rows, numbers, head_size, neox)
    return query, key
