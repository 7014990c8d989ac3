"""The step's rows: one buffer that every rotary module of a model reads, filled before each forward.

The buffers are made once and keep their addresses, as captured CUDA graphs need.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from vllm.model_executor.layers.rotary_embedding import Phi3LongRoPEScaledRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.utils.torch_utils import async_tensor_h2d

from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.kernels.parity_rows import ParityRows
from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.settings import RopeSettings, UnsupportedError

# Fills rows, ``[>= tokens, rotary_dim]``, from ``[tokens]`` positions, ``[requests]`` sets and ``[requests + 1]`` starts.
Filler = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


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
        self._kernels = parts.ask("triton", "kernels", device) if "triton" in settings.parts else None
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
                if self._kernels is not None:
                    module.rotate = self._kernels.rotate
                bound += 1
        if not bound:
            raise UnsupportedError("model: has no rotary embedding that a factor ladder could rotate")

    def load(self, settings: RopeSettings) -> None:
        """Fill rows by these factors from the next step on; sets keep their names, ends and numbers of factors."""
        sets, rotary_dim, device = frequencies(settings), settings.ladder.rotary_dim, self.rows.device
        self._filler: Filler
        if settings.angles == "hf":
            self._filler = self._by_token(ParityRows(settings.theta, rotary_dim, sets, device).fill)
            return
        tables = build_tables(settings.theta, rotary_dim, sets, self.max_model_len)
        if self._kernels is not None:
            self._filler = self._kernels.filler(tables, device)
        else:
            self._filler = self._by_token(ExactRows(tables, device).fill)

    def fill(self, positions: torch.Tensor, request_sets: npt.NDArray[np.int64], query_start_loc: torch.Tensor) -> None:
        """Write the rows of a step's tokens, without synchronising with the host; later rows keep what they hold.

        Args:
            positions: ``[tokens]`` int64 true positions, on the device.
            request_sets: ``[requests]`` the factor set of each request of the step.
            query_start_loc: ``[requests + 1]`` int32 on the device: where each request's tokens begin and the last end.
        """
        # A new tensor each step: the last step may still be reading its own.
        sets = async_tensor_h2d(request_sets, device=self.rows.device)
        self._filler(self.rows, positions, sets, query_start_loc)

    def _by_token(self, fill: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]) -> Filler:
        tokens = self.numbers.int()

        def fill_step(rows: torch.Tensor, positions: torch.Tensor, sets: torch.Tensor, starts: torch.Tensor) -> None:
            requests = torch.bucketize(tokens[: len(positions)], starts[1:], right=True)
            fill(rows, positions, sets[requests])

        return fill_step


def frequencies(settings: RopeSettings) -> tuple[Frequencies, ...]:
    """The ladder's sets as the kernels take them."""
    return tuple(Frequencies(s.factors, s.scale, s.start_tokens) for s in settings.ladder.sets)
