"""The rotary module that replaces every layer's own: rotates token i by row i of the step.

The runner passes the model row numbers as ``positions`` and keeps the rows up to date (``step_rows.py``). So a layer looks
up nothing by length, and its cost does not depend on the number of factor sets in a batch.
"""

from collections.abc import Callable

import torch
from torch import nn
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from ropeswitch.kernels.apply_rows import apply_rows
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.rows.rotation import Rotation, rotation_of

Rotated = tuple[torch.Tensor, torch.Tensor | None]
# Arguments: query, key, rows, row numbers, head_size, neox.
Rotate = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, int, bool], Rotated]


def rotate_by_row(
    query: torch.Tensor, key: torch.Tensor | None, rows: torch.Tensor, numbers: torch.Tensor, head_size: int, neox: bool
) -> Rotated:
    """Rotate token i by ``rows[numbers[i]]``, in plain torch; see :class:`LadderRotaryEmbedding`."""
    return apply_rows(rows.index_select(0, numbers), query, key, head_size, neox)


class LadderRotaryEmbedding(nn.Module):
    """Replaces ``vllm.model_executor.layers.rotary_embedding.RotaryEmbedding`` and its variants.

    Attributes:
        rows: ``[max tokens of a step, rotary_dim]`` float32, cosines then sines. The runner assigns its own buffer when the
            model is loaded and fills it before each forward.
        rotate: Rotates queries and keys, possibly in place; the part ``triton`` assigns its own function.
        is_table: Whether the layers of this module read its rows by row number themselves (``table_readers.py``).
        layer: The layer whose factors the rows have; None if the ladder has the same in all layers.
    """

    rows: torch.Tensor

    def __init__(self, head_size: int, rotation: Rotation, neox: bool) -> None:
        super().__init__()
        self.head_size = head_size
        self.rotation = rotation
        self.rotary_dim = rotary_dim = rotation.rotary_dim
        self.is_neox_style = neox
        self.rotate: Rotate = rotate_by_row
        self.is_table = False
        self.layer: int | None = None
        self.register_buffer("rows", torch.empty(0, rotary_dim, dtype=torch.float32), persistent=False)

    def forward(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) -> Rotated:
        """Rotate ``query`` and ``key``.

        Args:
            positions: ``[tokens]`` int64 row numbers, not positions in the sequence; for M-RoPE ``[axes, tokens]``, the
                same on each axis.
            query: ``[tokens, query heads * head_size]`` or ``[tokens, query heads, head_size]``.
            key: Laid out as ``query``, with the key heads; or None.
        """
        positions = positions if positions.dim() == 1 else positions[0]
        return self.rotate(query, key, self.rows, positions, self.head_size, self.is_neox_style)

    @property
    def cos_sin_cache(self) -> torch.Tensor:
        """Return the rows, to a layer that reads upstream's table of angles by exactly the positions it was given.

        Raises:
            UnsupportedError: for any other layer.
        """
        if not self.is_table:
            raise UnsupportedError("model: reads cos_sin_cache by itself, where a ladder has no angles by position")
        return self.rows


def split_by_layer(text: nn.Module, layers: int) -> None:
    """Give each decoder layer its own rotary modules, since layers that rotate alike share one as they are built.

    Whatever still rotates with a shared module is refused in the forward before weights load (``row_numbers.py``).

    Raises:
        UnsupportedError: for a module that is in none of the ``layers`` or in several, or whose rows others read.
    """
    made: dict[tuple[nn.Module, int], LadderRotaryEmbedding] = {}
    places: dict[tuple[nn.Module, str], int] = {}
    for name, shared in list(text.named_modules(remove_duplicate=False)):
        if not isinstance(shared, LadderRotaryEmbedding) or not shared.rotation.laddered or shared.layer is not None:
            continue
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        parent = text.get_submodule(name.rpartition(".")[0])
        place = (parent, name.rpartition(".")[2])
        one = len(numbers) == 1 and numbers[0] < layers and places.setdefault(place, numbers[0]) == numbers[0]
        if not one or shared.is_table or list(shared.children()):
            raise UnsupportedError(f"sets.layers: {name} rotates for other than one layer alone; leave layers out")
        if (key := (shared, numbers[0])) not in made:
            made[key] = LadderRotaryEmbedding(shared.head_size, shared.rotation, shared.is_neox_style)
            made[key].layer, shared.rotate = numbers[0], _rotate_shared
        setattr(*place, made[key])


def _rotate_shared(*_: object) -> Rotated:
    raise UnsupportedError("sets.layers: the model rotates layers by a module that they share; leave layers out")


def replace_plain_rotary(text: nn.Module, settings: RopeSettings) -> None:
    """Replace the plain rotary modules of a decoder without its encoders, which ``get_rope`` mistook for an encoder's.

    The decoder of a multimodal model may set its layers' rope parameters itself (GLM-4V, Moondream, MiMo-V2 Omni). These
    then lack the config's mark, as encoders' layers do. A module with the ladder's base follows the ladder; any other keeps
    its own base.

    Raises:
        UnsupportedError: when the number of factors does not match a layer.
    """
    ours: dict[RotaryEmbedding, LadderRotaryEmbedding] = {}
    for parent in list(text.modules()):
        for name, module in parent.named_children():
            if type(module) is not RotaryEmbedding:
                continue
            if module not in ours:
                plain = {"rope_theta": module.base}
                rotation = rotation_of(module.head_size, module.rotary_dim, plain, settings, multimodal=False)
                assert rotation is not None
                ours[module] = LadderRotaryEmbedding(module.head_size, rotation, module.is_neox_style)
            setattr(parent, name, ours[module])
