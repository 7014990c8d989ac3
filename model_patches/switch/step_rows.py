"""The step's rows: one buffer that every rotary module of a model reads, filled before each forward.

The buffers are made once and keep their addresses, as captured CUDA graphs need.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from vllm.model_executor.layers.rotary_embedding import Phi3LongRoPEScaledRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.utils.torch_utils import async_tensor_h2d

from ropeswitch.kernels.angles import AngleTables, Frequencies, build_tables
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.kernels.parity_rows import ParityRows
from ropeswitch.model_patches.switch.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.settings import RopeSettings, UnsupportedError

# Kinds of device on which Triton fills and applies the rows.
TRITON_DEVICES = {"cuda"}
Sets = npt.NDArray[np.int64]


class _Filler(Protocol):
    def __call__(
        self, rows: torch.Tensor, positions: torch.Tensor, request_sets: Sets, query_start_loc: torch.Tensor
    ) -> None: ...


class StepRows:
    """The rows of one step, on one device.

    Args:
        settings: The ladder and the model's rotary base.
        max_model_len: Positions that a sequence can have.
        max_num_tokens: Tokens that a step can have.
        device: Where the model runs.

    Attributes:
        rows: ``[max_num_tokens, rotary_dim]`` float32, cosines then sines.
        numbers: ``[max_num_tokens]`` int64, 0 to the end: what the model gets for positions.
        sets: The names of the ladder's sets.
        max_model_len: Positions that a sequence can have.
    """

    def __init__(self, settings: RopeSettings, max_model_len: int, max_num_tokens: int, device: torch.device) -> None:
        rotary_dim = settings.ladder.rotary_dim
        self.rows = torch.zeros(max_num_tokens, rotary_dim, dtype=torch.float32, device=device)
        self.numbers = torch.arange(max_num_tokens, dtype=torch.int64, device=device)
        self.sets = settings.ladder.names
        self.max_model_len = max_model_len
        self._on_triton = device.type in TRITON_DEVICES
        self.load(settings)

    def bind(self, model: nn.Module) -> None:
        """Give every rotary module of ``model`` these rows.

        Raises:
            UnsupportedError: when the model has no rotary module, or one that the ladder did not replace.
        """
        bound = 0
        for name, module in model.named_modules():
            if isinstance(module, RotaryEmbeddingBase | Phi3LongRoPEScaledRotaryEmbedding):
                raise UnsupportedError(f"model: {name} builds its own {type(module).__name__}, which no ladder reaches")
            if isinstance(module, LadderRotaryEmbedding):
                module.rows = self.rows
                module.with_triton = self._on_triton
                bound += 1
        if self._on_triton:
            # A compiled model that comes from vLLM's cache is not traced, and so imports no op by itself.
            import ropeswitch.kernels.apply_rows_triton  # noqa: F401
        if not bound:
            raise UnsupportedError("model: has no rotary embedding that a factor ladder could rotate")

    def load(self, settings: RopeSettings) -> None:
        """Fill rows by these factors from the next step on; sets keep their names, ends and numbers of factors."""
        self._filler = _filler(settings, self.max_model_len, len(self.rows), self.rows.device)

    def fill(self, positions: torch.Tensor, request_sets: Sets, query_start_loc: torch.Tensor) -> None:
        """Write the rows of a step's tokens.

        Args:
            positions: ``[>= tokens]`` int64 true positions, on the device.
            request_sets: ``[requests]`` the factor set of each request of the step.
            query_start_loc: ``[requests + 1]`` int32 on the device: where each request's tokens begin and the last end.
                Rows from there on keep what they hold.
        """
        self._filler(self.rows, positions, request_sets, query_start_loc)


def frequencies(settings: RopeSettings) -> tuple[Frequencies, ...]:
    """The ladder's sets as the kernels take them."""
    return tuple(Frequencies(s.factors, s.scale, s.start_tokens) for s in settings.ladder.sets)


def _filler(settings: RopeSettings, max_model_len: int, max_num_tokens: int, device: torch.device) -> _Filler:
    sets = frequencies(settings)
    rotary_dim = settings.ladder.rotary_dim
    if settings.angles == "hf":
        return _parity(ParityRows(settings.theta, rotary_dim, sets, device))
    tables = build_tables(settings.theta, rotary_dim, sets, max_model_len)
    if device.type in TRITON_DEVICES:
        return _with_triton(tables, device)
    return _on_host(ExactRows(tables, max_num_tokens))


def _on_host(exact: ExactRows) -> _Filler:
    def fill(rows: torch.Tensor, positions: torch.Tensor, request_sets: Sets, query_start_loc: torch.Tensor) -> None:
        token_sets = np.repeat(request_sets, np.diff(query_start_loc.numpy()))
        exact.fill(rows.numpy(), positions[: len(token_sets)].numpy(), token_sets)

    return fill


def _with_triton(tables: AngleTables, device: torch.device) -> _Filler:
    # Not every CPU install has Triton.
    from ropeswitch.kernels.fill_rows_triton import DeviceTables, fill_rows_triton

    on_device = DeviceTables.from_tables(tables, device)

    def fill(rows: torch.Tensor, positions: torch.Tensor, request_sets: Sets, query_start_loc: torch.Tensor) -> None:
        # A new tensor each step: the last step may still be reading its own.
        sets = async_tensor_h2d(request_sets, device=device)
        fill_rows_triton(rows, positions, sets, query_start_loc, on_device)

    return fill


def _parity(parity: ParityRows) -> _Filler:
    def fill(rows: torch.Tensor, positions: torch.Tensor, request_sets: Sets, query_start_loc: torch.Tensor) -> None:
        sets = torch.from_numpy(request_sets).to(rows.device)
        token_sets = torch.repeat_interleave(sets, query_start_loc.diff())
        parity.fill(rows, positions[: len(token_sets)], token_sets)

    return fill
