"""Buffers with the factor set of each request in a draft model's batch, read by its rotary modules.

The buffers are allocated once and keep their addresses, as captured CUDA graphs require.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from vllm.model_executor.layers.rotary_embedding import Phi3LongRoPEScaledRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.utils.torch_utils import async_tensor_h2d

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.drafts.draft_rotary import DraftRotaryEmbedding


class DraftSets:
    """The factor sets of a draft model's requests, on one device.

    ``starts`` is ``[max_num_reqs + 1]`` int32, the start offset of each request's tokens, followed by the end offset: a
    buffer that upstream fills before each draft forward. None to fill one with :meth:`lay_out`.
    """

    def __init__(self, max_num_reqs: int, device: torch.device, starts: torch.Tensor | None = None) -> None:
        # Whether a module of the draft model reads these sets.
        self.bound = False
        # One extra entry for padding tokens.
        self._sets = torch.zeros(max_num_reqs + 1, dtype=torch.int64, device=device)
        self._starts = torch.zeros(max_num_reqs + 1, dtype=torch.int32, device=device) if starts is None else starts

    def bind(self, model: nn.Module) -> None:
        """Attach these sets to every rotary module of a draft model."""
        for module in model.modules():
            if isinstance(module, DraftRotaryEmbedding):
                module.sets, module.starts = self._sets, self._starts
                self.bound = True

    def put(self, request_sets: npt.NDArray[np.int64]) -> None:
        """Write the sets of a step's requests, in batch order, without a host-device sync."""
        self._sets[: len(request_sets)] = async_tensor_h2d(request_sets, device=self._sets.device)

    def lay_out(self, query_start_loc: torch.Tensor) -> None:
        """Write the start of each request's tokens in the next forward: ``[requests + 1]`` int32, on the device."""
        self._starts[: len(query_start_loc)] = query_start_loc
        self._starts[len(query_start_loc) :] = query_start_loc[-1]

    def follow(self, proposer: Any) -> None:
        """Have a V1 proposer call :meth:`lay_out` whenever it builds attention metadata, which it does before each forward.

        The guard does not fingerprint that method: drafts made in a wrong set are rejected.
        """
        upstream = proposer.build_per_group_and_layer_attn_metadata

        def build(common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
            self.lay_out(common_attn_metadata.query_start_loc)
            return upstream(common_attn_metadata, *args, **kwargs)

        proposer.build_per_group_and_layer_attn_metadata = build


def upstream_tables(model: nn.Module) -> dict[str, int]:
    """Return how many positions each upstream rotary module of a draft model has angles for, by module name."""
    lengths = {}
    for name, module in model.named_modules():
        if isinstance(module, Phi3LongRoPEScaledRotaryEmbedding):
            short, both = module.original_max_position_embeddings, len(module.long_short_cos_sin_cache)
            lengths[name] = both - short if module.use_long_rope else short
        elif isinstance(module, RotaryEmbeddingBase):
            lengths[name] = len(module.cos_sin_cache)
    return lengths


def check_tables(model: nn.Module, positions: int) -> None:
    """Refuse a draft model whose own angle tables end before the number of positions it may draft at.

    Raises:
        UnsupportedError: naming the module.
    """
    for name, length in upstream_tables(model).items():
        if length < positions:
            raise UnsupportedError(
                f"speculative_config.model: {name} of {type(model).__name__} has angles for {length} positions, but drafts "
                f"are made at up to {positions}; use max_model_len: {length}, or a draft model with the target's rotary base"
            )
