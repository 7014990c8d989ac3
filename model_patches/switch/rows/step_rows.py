"""The step's rows: buffers that a model's rotary modules read, filled before each forward.

The buffers are allocated once and keep their addresses, as captured CUDA graphs require.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from vllm.distributed.parallel_state import get_pp_group, model_parallel_is_initialized
from vllm.model_executor.layers.rotary_embedding import Phi3LongRoPEScaledRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.model_executor.models.interfaces import supports_mrope, supports_multimodal
from vllm.model_executor.models.transformers.base import Base as TransformersBackend
from vllm.utils.torch_utils import async_tensor_h2d

from ropeswitch.kernels.angles import build_tables
from ropeswitch.kernels.axis_rows import AxisRows
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.rows.group_rows import add_group_rotary
from ropeswitch.model_patches.switch.rows.position_readers import give_positions
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding, replace_plain_rotary, split_by_layer
from ropeswitch.model_patches.switch.rows.rotation import Rotation
from ropeswitch.model_patches.switch.rows.softmax_scales import SoftmaxScales
from ropeswitch.model_patches.switch.rows.table_readers import give_tables
from ropeswitch.model_patches.switch.rows.transformers_rotary import replace_rotary

T = TypeVar("T")
# Up to this many tokens all layers are filled at once, in fewer calls; the values of more need much memory.
FEW = 256
# Fills rows, ``[>= tokens, rotary_dim]``, from ``[tokens]`` or ``[axes, tokens]`` positions, ``[requests]`` sets and
# ``[requests + 1]`` starts.
Filler = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


def check_axes(model: nn.Module, model_config: Any) -> None:
    """Refuse M-RoPE for a whole model without positions on several axes; upstream would fail at its first request.

    Raises:
        UnsupportedError: with the config field.
    """
    if model_config.uses_mrope and not supports_mrope(model):
        raise UnsupportedError(
            f"rope_parameters.mrope_section: {type(model).__name__} has no positions on several axes (M-RoPE); leave it out"
        )


def on_all_stages(value: T) -> list[T]:
    """Return what each pipeline stage passes here, one value without pipeline parallelism.

    A model's layers decide together which of them the ladder rotates, but a stage builds only its own.
    """
    if not model_parallel_is_initialized() or (group := get_pp_group()).world_size == 1:
        return [value]
    values: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(values, value, group=group.cpu_group)
    return values


class RotationRows:
    """The rows of one rotation on the device of ``numbers``: ``[max tokens of a step]`` int64 row numbers, from 0.

    ``max_model_len`` is the maximum positions in a sequence; ``kernels`` are those of the part ``triton``, or None.
    """

    def __init__(
        self, rotation: Rotation, settings: RopeSettings, max_model_len: int, numbers: torch.Tensor, kernels: Any
    ) -> None:
        self.rotation, self._settings, self.max_model_len, self.kernels = rotation, settings, max_model_len, kernels
        self._layers = settings.ladder.layers if rotation.laddered else 0
        # [max tokens of a step, rotary_dim], cosines then sines; before it, the layer, if they differ.
        shape = ((self._layers,) if self._layers else ()) + (len(numbers), rotation.rotary_dim)
        self.rows = torch.empty(shape, dtype=torch.float32, device=numbers.device)
        self._tokens = numbers.int()
        self.restore()

    def restore(self) -> None:
        """Write everything that is constant across steps; buffers keep their addresses."""
        self.rows.zero_()
        torch.arange(len(self._tokens), out=self._tokens)
        rotation, device = self.rotation, self.rows.device
        self._first_sets = len(self._settings.ladder.sets) * torch.arange(self._layers, device=device)[:, None]
        theta, width = rotation.theta, rotation.rotary_dim
        layers = range(self._layers) if self._layers else (None,)
        sets = tuple(each for layer in layers for each in rotation.sets(self._settings, layer))
        exact = self._settings.angles == "exact"
        self._filler: Filler
        if rotation.axes is not None or not exact:
            dtype = torch.float64 if exact else torch.float32
            self._filler = self._by_token(AxisRows(theta, width, sets, rotation.axes, device, dtype).fill)
            return
        tables = build_tables(theta, width, sets, self.max_model_len)
        if self.kernels is not None:
            self._filler = self.kernels.filler(tables, device)
        else:
            self._filler = self._by_token(ExactRows(tables, device).fill)

    def fill(self, positions: torch.Tensor, sets: torch.Tensor, starts: torch.Tensor) -> None:
        """Write the rows of a step's tokens; later rows are left unchanged.

        Args:
            positions: ``[tokens]`` or ``[axes, tokens]`` int64 true positions.
            sets: ``[requests]`` int64: the factor set of each request.
            starts: ``[requests + 1]`` int32: start offset of each request's tokens, followed by the end offset.
        """
        if not self.rotation.laddered:
            sets = torch.zeros_like(sets)
        if self.rotation.axes is None and positions.dim() == 2:
            positions = positions[0]
        if self.rotation.behind:
            positions = (positions - self.rotation.behind).clamp(min=0)
        self._filler(self.rows, positions, sets, starts)

    def _by_token(self, fill: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]) -> Filler:
        tokens, first_sets = self._tokens, self._first_sets

        def fill_step(rows: torch.Tensor, positions: torch.Tensor, sets: torch.Tensor, starts: torch.Tensor) -> None:
            requests = torch.bucketize(tokens[: positions.shape[-1]], starts[1:], right=True)
            chosen = sets[requests]
            if rows.dim() == 2:
                fill(rows, positions, chosen)
            elif len(chosen) <= FEW:
                fill(rows, positions, chosen + first_sets)
            else:
                for of_layer, first_set in zip(rows, first_sets, strict=True):
                    fill(of_layer, positions, chosen + first_set)

        return fill_step


class StepRows:
    """The rows of one step, on the model's device; ``max_model_len`` is the maximum positions in a sequence."""

    def __init__(self, settings: RopeSettings, max_model_len: int, max_num_tokens: int, device: torch.device) -> None:
        # Row numbers, counting from 0, which the model gets instead of positions.
        self.numbers = torch.arange(max_num_tokens, dtype=torch.int64, device=device)
        # [max_num_tokens] int64 true positions, for layers that read them; None if no layer does.
        self.positions: torch.Tensor | None = None
        self.max_model_len = max_model_len
        # The rows of each kind of rotary module in the model, once it is bound.
        self.by_rotation: dict[Rotation, RotationRows] = {}
        self._rotates = False
        self._settings = settings
        scaled = settings.ladder.scales_softmax
        self.softmax = SoftmaxScales(settings.ladder, max_num_tokens, device) if scaled else None
        self._kernels = parts.ask("triton", "kernels", device) if "triton" in settings.parts else None

    def bind(self, model: nn.Module) -> None:
        """Attach the rows to every rotary module of ``model``'s language model, on all pipeline stages at the same time.

        Raises:
            UnsupportedError: when it has a rotary module that the ladder does not support.
        """
        text: nn.Module = model.get_language_model() if supports_multimodal(model) else model
        if isinstance(text, TransformersBackend):
            replace_rotary(text.model, text.text_config, self._settings, lambda rotation: self._rows_of(rotation).rows)
        elif text is not model:
            replace_plain_rotary(text, self._settings)
        add_group_rotary(text)
        ours = [module for module in text.modules() if isinstance(module, LadderRotaryEmbedding)]
        stages = on_all_stages(({module.rotation for module in ours}, set(self.by_rotation)))
        rotations = {rotation for of_modules, _ in stages for rotation in of_modules}
        replaced = {rotation for _, of_backend in stages for rotation in of_backend}
        # A model that sets its local layers' parameters itself may give them the ladder's base.
        by_config = any(rotation.marked and rotation.laddered for rotation in rotations)
        self._rotates = any(rotation.laddered and (rotation.marked or not by_config) for rotation in rotations) or any(
            rotation.laddered for rotation in replaced
        )
        for module in ours:
            if by_config and module.rotation.scaled:
                raise UnsupportedError("model: a layer scales its rotary embedding itself, which no ladder reaches")
            if by_config and not module.rotation.marked:
                module.rotation = replace(module.rotation, laddered=False)
        give_tables(text)
        if self._settings.ladder.layers:
            if isinstance(text, TransformersBackend):
                raise UnsupportedError(
                    "sets.layers: vLLM's Transformers backend (model_impl) rotates all layers alike; leave layers out"
                )
            split_by_layer(text, self._settings.ladder.layers)
        for name, module in text.named_modules():
            if isinstance(module, RotaryEmbeddingBase | Phi3LongRoPEScaledRotaryEmbedding):
                raise UnsupportedError(f"model: {name} builds its own {type(module).__name__}, which no ladder reaches")
            if isinstance(module, LadderRotaryEmbedding):
                rows = self._rows_of(module.rotation).rows
                module.rows = rows if module.layer is None else rows[module.layer]
                if self._kernels is not None:
                    module.rotate = self._kernels.rotate
        if len({rotation.axes is None for rotation in rotations | replaced}) > 1:
            raise UnsupportedError(
                "rope_parameters.mrope_section: only some layers have it; M-RoPE must be that of all layers"
            )
        positions = torch.zeros_like(self.numbers)
        if give_positions(text, positions):
            self.positions = positions
        if self.softmax is not None:
            self.softmax.bind(text)

    def require_rotation(self) -> None:
        """Refuse a bound model that has no rotary module for the ladder on any pipeline stage.

        Raises:
            UnsupportedError: when it has none.
        """
        if not self._rotates:
            raise UnsupportedError("model: has no rotary embedding that a factor ladder could rotate")

    def restore(self) -> None:
        """Rewrite everything that is constant across steps; buffers with fixed addresses are written in place."""
        torch.arange(len(self.numbers), out=self.numbers)
        for rows in self.by_rotation.values():
            rows.restore()
        if self.positions is not None:
            self.positions.zero_()
        if self.softmax is not None:
            self.softmax.restore()

    def fill(self, positions: torch.Tensor, request_sets: npt.NDArray[np.int64], query_start_loc: torch.Tensor) -> None:
        """Write the rows of a step's tokens, without a host-device sync; later rows are left unchanged.

        Args:
            positions: ``[tokens]``, or for M-RoPE ``[axes, tokens]``, int64 true positions, on the device.
            request_sets: ``[requests]`` int64: the factor set of each request in the step.
            query_start_loc: ``[requests + 1]`` int32, on the device: start offset of each request's tokens, followed by the
                end offset.
        """
        # A new tensor each step: the previous step may still be reading its own.
        sets = async_tensor_h2d(request_sets, device=self.numbers.device)
        for rows in self.by_rotation.values():
            rows.fill(positions, sets, query_start_loc)
        if self.positions is not None:
            self.positions[: positions.shape[-1]] = positions if positions.dim() == 1 else positions[0]
        if self.softmax is not None:
            self.softmax.fill(positions.shape[-1], sets, query_start_loc)

    def _rows_of(self, rotation: Rotation) -> RotationRows:
        if rotation not in self.by_rotation:
            rows = RotationRows(rotation, self._settings, self.max_model_len, self.numbers, self._kernels)
            self.by_rotation[rotation] = rows
        return self.by_rotation[rotation]
