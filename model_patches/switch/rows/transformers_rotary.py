"""Replaces the rotary modules of Hugging Face models in vLLM's Transformers backend with ones that read the step's rows.

Such a module returns cos and sin for the given positions, and the layers rotate with them. Ours returns the step's rows, in
the layout of the module that it replaces.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from ropeswitch.factors.rope_layers import by_layer_type
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.rows.rotation import Rotation, rotation_of

# How modules lay out one value per rotary pair, ``[..., pairs]``, along the last dimension of cos and sin.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "repeated": lambda values: torch.cat((values, values), dim=-1),
    "interleaved": lambda values: values.repeat_interleave(2, dim=-1),
    "once": lambda values: values,
}
# Positions at which a module is compared with plain rotation, and the tolerance for its float32 values.
PROBE = (0, 1, 2, 3, 7, 30)
TOLERANCE = 1e-4

# Returns the rows of a rotation.
RowsOf = Callable[[Rotation], torch.Tensor]
CosSin = tuple[torch.Tensor, torch.Tensor]


class RowsRotaryEmbedding(nn.Module):
    """Replaces the ``RotaryEmbedding`` of a Hugging Face model; ``layout`` is one of :data:`LAYOUTS`.

    ``casts``: whether cos and sin are cast to the hidden states' dtype, as in most models; otherwise they stay float32.
    """

    rows: torch.Tensor  # `[max tokens of a step, rotary_dim]` float32, cosines then sines, written before each forward.

    def __init__(self, rotation: Rotation, rows: torch.Tensor, layout: str, casts: bool) -> None:
        super().__init__()
        self.rotation, self.layout, self.casts = rotation, layout, casts
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> CosSin:
        """Return cos and sin, ``[1, tokens, values]``, of ``[1, tokens]`` int64 row numbers; ``x`` only gives its dtype."""
        spread = LAYOUTS[self.layout]
        cos, sin = self.rows.index_select(0, position_ids[0])[None].chunk(2, dim=-1)
        dtype = x.dtype if self.casts else self.rows.dtype
        return spread(cos).to(dtype), spread(sin).to(dtype)


class LayerTypesRotaryEmbedding(nn.Module):
    """Replaces a ``RotaryEmbedding`` that is called for one layer type at a time, by a module for each."""

    def __init__(self, by_type: Mapping[str, RowsRotaryEmbedding]) -> None:
        super().__init__()
        self.by_type = nn.ModuleDict(by_type)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str) -> CosSin:
        """Return cos and sin for layers of type ``layer_type``, like :class:`RowsRotaryEmbedding`."""
        tables: CosSin = self.by_type[layer_type](x, position_ids)
        return tables


def replace_rotary(model: nn.Module, config: PreTrainedConfig, settings: RopeSettings, rows_of: RowsOf) -> None:
    """Replace every rotary module of a Hugging Face model; modules that are already ours get new rows.

    The text config's rope parameters have no scaling where the ladder applies.

    Raises:
        UnsupportedError: for a module that takes positions but does not rotate as the config says.
    """
    replaced: dict[nn.Module, nn.Module] = {}
    for name, module in list(_takers_of_positions(model)):
        if isinstance(module, RowsRotaryEmbedding):
            module.rows = rows_of(module.rotation)
            continue
        if module not in replaced:
            replaced[module] = _replacement(f"{name} ({type(module).__name__})", module, config, settings, rows_of)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, replaced[module])


def _takers_of_positions(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules without weights whose forward takes positions, under each of their names."""
    for name, module in model.named_modules(remove_duplicate=False):
        leaf = next(module.children(), None) is None and next(module.parameters(), None) is None
        if leaf and "position_ids" in inspect.signature(module.forward).parameters:
            yield name, module


def _replacement(
    where: str, module: nn.Module, config: PreTrainedConfig, settings: RopeSettings, rows_of: RowsOf
) -> nn.Module:
    def made(rope: Mapping[str, Any], **layer_type: str) -> RowsRotaryEmbedding:
        layout, rotary_dim, casts = _probed(where, module, float(rope["rope_theta"]), layer_type)
        rotation = rotation_of(rotary_dim, rotary_dim, rope, settings, multimodal=False)
        if rotation is None or rotation.axes is not None:
            raise UnsupportedError(
                f"model: {where} rotates by positions on several axes, which no ladder reaches there"
            )
        return RowsRotaryEmbedding(rotation, rows_of(rotation), layout, casts)

    by_type = by_layer_type({"rope_parameters": config.rope_parameters})
    if by_type is None:
        return made(config.rope_parameters)
    if "layer_type" not in inspect.signature(module.forward).parameters:
        raise UnsupportedError(
            f"model: {where} is not called for a type of layer, but rope_parameters has several: {', '.join(by_type)}"
        )
    # The module handles only the types that layers have.
    types = [name for name in by_type if name in config.layer_types]
    return LayerTypesRotaryEmbedding({name: made(by_type[name], layer_type=name) for name in types})


def _probed(where: str, module: nn.Module, theta: float, layer_type: Mapping[str, str]) -> tuple[str, int, bool]:
    """Return a rotary module's layout, its rotated values per head, and whether it casts to the dtype of ``x``."""
    device = next(module.buffers(), torch.empty(0)).device
    positions = torch.tensor([PROBE], dtype=torch.int64, device=device)
    tables, rounded = (
        module(torch.zeros(1, len(PROBE), 1, dtype=dtype, device=device), position_ids=positions, **layer_type)
        for dtype in (torch.float32, torch.bfloat16)
    )
    for layout, spread in LAYOUTS.items():
        pairs = tables[0].shape[-1] // spread(torch.zeros(1)).numel()
        inverse = theta ** -(torch.arange(pairs, dtype=torch.float64, device=device) / pairs)
        angles = positions[..., None] * inverse
        if all(map(_close, tables, (spread(angles.cos()), spread(angles.sin())))):
            return layout, 2 * pairs, rounded[0].dtype == torch.bfloat16
    raise UnsupportedError(
        f"model: {where} does not return cos and sin of plain rotation with rope_theta {theta:g}, so a factor ladder "
        "cannot replace it"
    )


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found.double(), expected, rtol=0, atol=TOLERANCE)
