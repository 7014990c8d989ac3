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

from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.fill_rows import ExactRows, ParityRows
from ropeswitch.model_patches.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.settings import RopeSettings, UnsupportedError


class _Filler(Protocol):
    def fill(
        self, rows: npt.NDArray[np.float32], positions: npt.NDArray[np.int64], set_indices: npt.NDArray[np.int64]
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
    """

    def __init__(self, settings: RopeSettings, max_model_len: int, max_num_tokens: int, device: torch.device) -> None:
        self.rows = torch.zeros(max_num_tokens, settings.ladder.rotary_dim, dtype=torch.float32, device=device)
        self.numbers = torch.arange(max_num_tokens, dtype=torch.int64, device=device)
        self.sets = settings.ladder.names
        self._filler = _host_filler(settings, max_model_len, max_num_tokens)

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
                bound += 1
        if not bound:
            raise UnsupportedError("model: has no rotary embedding that a factor ladder could rotate")

    def fill(self, positions: torch.Tensor, request_sets: npt.NDArray[np.int64], query_start_loc: torch.Tensor) -> None:
        """Write the rows of a step's tokens.

        Args:
            positions: ``[>= tokens]`` int64 true positions, on the device.
            request_sets: ``[requests]`` the factor set of each request of the step.
            query_start_loc: ``[requests + 1]`` int32 on the device: where each request's tokens begin and the last end.
        """
        token_sets = np.repeat(request_sets, np.diff(query_start_loc.numpy()))
        self._filler.fill(self.rows.numpy(), positions[: len(token_sets)].numpy(), token_sets)


def _host_filler(settings: RopeSettings, max_model_len: int, max_num_tokens: int) -> _Filler:
    sets = tuple(Frequencies(s.factors, s.scale, s.start_tokens) for s in settings.ladder.sets)
    rotary_dim = settings.ladder.rotary_dim
    if settings.angles == "hf":
        return ParityRows(settings.theta, rotary_dim, sets)
    return ExactRows(build_tables(settings.theta, rotary_dim, sets, max_model_len), max_num_tokens)
