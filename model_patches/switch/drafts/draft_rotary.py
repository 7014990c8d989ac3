"""The rotary module of a draft model's layers: rotates each token by its true position, in its request's factor set.

A draft model runs after the target, on its own positions, several times per step and inside captured graphs. So its layers
compute their angles from positions and each request's set (``draft_sets.py``) instead of reading the step's rows.
A layer keeps upstream's module if it has another rotary base, another number of frequencies, or plain rotary embeddings
while the target's first set is scaled; so does a draft model that reads upstream's angle table directly
(:data:`TABLE_READERS`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from ropeswitch.factors.rope_layers import AXIS_TYPES, LADDER, MARK, TRAINED
from ropeswitch.factors.rules.rope import base_of
from ropeswitch.kernels.apply_rows import apply_rows
from ropeswitch.kernels.axis_rows import AxisRows
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.rows.rotation import Rotation, rotation_of

# Speculative methods whose models rotate the target's hidden states in kernels that read cos and sin by position.
TABLE_READERS = ("dflash", "dspark")


class DraftRotaryEmbedding(nn.Module):
    """Replaces upstream's rotary modules in a draft model."""

    sets: torch.Tensor  # `[max requests + 1]` int64: the factor set of each request in the batch.
    starts: torch.Tensor  # `[max requests + 1]` int32: start of each request's tokens, followed by the end.

    def __init__(self, head_size: int, rotation: Rotation, neox: bool, settings: RopeSettings) -> None:
        super().__init__()
        self.head_size, self.rotary_dim, self.is_neox_style = head_size, rotation.rotary_dim, neox
        # While loading, torch's default device is the model's.
        device, dtype = torch.get_default_device(), torch.float64 if settings.angles == "exact" else torch.float32
        self._angles = AxisRows(
            rotation.theta, rotation.rotary_dim, rotation.sets(settings), rotation.axes, device, dtype
        )
        # Sleep level 2 discards everything allocated with the model, except registered buffers, which upstream saves.
        for name, tensor in vars(self._angles).items():
            self.register_buffer(f"angles{name}", tensor, persistent=False)
        self.register_buffer("sets", torch.zeros(2, dtype=torch.int64), persistent=False)
        self.register_buffer("starts", torch.zeros(2, dtype=torch.int32), persistent=False)

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate ``query`` and ``key``, as :class:`LadderRotaryEmbedding` does, by true positions."""
        count = positions.shape[-1]
        tokens = torch.arange(count, dtype=torch.int32, device=positions.device)
        # Padding tokens follow the last request; they use the spare last entry of `sets`.
        requests = torch.bucketize(tokens, self.starts[1:], right=True)
        rows = torch.empty(count, self.rotary_dim, dtype=torch.float32, device=positions.device)
        self._angles.fill(rows, positions, self.sets[requests])
        return apply_rows(rows, query, key, self.head_size, self.is_neox_style)

    @property
    def cos_sin_cache(self) -> torch.Tensor:
        """Refuse to return upstream's table of angles by position, which some models read directly."""
        raise UnsupportedError(
            "speculative_config.model: reads cos_sin_cache by itself, where a ladder has no angles by position"
        )


# Modules of the draft model being built, by `get_rope` key; None keeps upstream's.
Built = dict[Any, DraftRotaryEmbedding | None]
# None unless a draft model is being built.
_BUILT: ContextVar[Built | None] = ContextVar("draft_modules", default=None)


@contextmanager
def building_a_draft() -> Iterator[None]:
    """Treat modules that ``get_rope`` builds in this context as a draft model's."""
    token = _BUILT.set({})
    try:
        yield
    finally:
        _BUILT.reset(token)


def a_draft_is_built() -> bool:
    """Return whether ``get_rope`` is being called for a draft model."""
    return _BUILT.get() is not None


def draft_rotary(key: Any, settings: RopeSettings, method: str) -> DraftRotaryEmbedding | None:
    """Return the module for a draft model's layer, by ``get_rope``'s key and the speculative method; None for upstream's."""
    modules = _BUILT.get()
    assert modules is not None
    if key not in modules:
        head_size, _, _, neox, *_ = key
        rotation = None if method in TABLE_READERS else _rotation(key, settings)
        modules[key] = None if rotation is None else DraftRotaryEmbedding(head_size, rotation, neox, settings)
    return modules[key]


def _rotation(key: Any, settings: RopeSettings) -> Rotation | None:
    """Return the ladder's rotation for layers trained like the target's, or None for other layers."""
    head_size, rotary_dim, _, _, rope_args, dual_chunk_args, _, _ = key
    rope: dict[str, Any] = {"rope_theta": 10000} | dict(rope_args or ())
    if dual_chunk_args is not None or rope.get("rope_type") in AXIS_TYPES or rotary_dim != settings.ladder.rotary_dim:
        return None
    first = settings.ladder.sets[0]
    scaled = first.scale != 1 or any(factor != 1 for factor in first.factors)
    # If the target scales even its shortest sequences, plain draft layers were trained on different angles. MTP
    # layers read the target's own config, where the ladder's mark replaces its scaling.
    plain = rope.get("rope_type") in (None, "default") and rope.get(MARK) is None
    if base_of(rope) != settings.theta or (scaled and plain) or rope.get(MARK) == TRAINED:
        return None
    return rotation_of(head_size, rotary_dim, rope | {MARK: LADDER}, settings, multimodal=False)
