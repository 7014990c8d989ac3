"""``vllm.models.qwen4_exp.nvidia.indexer_qsa.apply_qsa_rope``: replaced, to rotate the indexer's heads by rows.

replaces: that function, and the positions that ``ops.qsa.qsa_compress_groups_with_ratio`` returns, in Qwen 4's sparse
    attention.
why: its indexer rotates queries by the positions that the model was given, which are row numbers, and each group of keys by
    the position of its first token, which may be of an earlier step.
what differs: queries follow their tokens' rows. A group follows a second buffer, with the row of the position of its first
    token in the set of its request. The fused kernel, which reads upstream's table itself, is off: our rotary module has no
    dtype.
limits: text, in which a group's tokens have consecutive positions (``unsupported.py``). Drafts keep upstream's modules.
when it can go: when the runner no longer passes row numbers to the model.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ropeswitch.model_patches.switch.rows.position_readers import names_of
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding

_QSA = "vllm.models.qwen4_exp.nvidia"
INDEXER = f"{_QSA}.indexer_qsa.QSAIndexer"
ROTATE = f"{_QSA}.indexer_qsa.apply_qsa_rope"
COMPRESS = f"{_QSA}.ops.qsa.qsa_compress_groups_with_ratio"


class FirstPositions(torch.Tensor):
    """The positions of the first tokens of a step's groups; so are its slices."""


def add_group_rotary(model: nn.Module) -> None:
    """Give the rotary module of each indexer in ``model`` another one for groups, with rows of its own."""
    for module in model.modules():
        if INDEXER in names_of(module) and isinstance(module.rotary_emb, LadderRotaryEmbedding):
            ours, behind = module.rotary_emb, module.compress_ratio - 1
            ours.groups = LadderRotaryEmbedding(
                module.index_head_dim, replace(ours.rotation, behind=behind), ours.is_neox_style
            )


def telling_groups(upstream: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Callable[..., Any]:
    """Wrap the function that pools groups, so that the next one knows their first positions from other positions."""

    def compress(*args: Any) -> tuple[torch.Tensor, FirstPositions]:
        pooled, first_positions = upstream(*args)
        return pooled, first_positions.as_subclass(FirstPositions)

    return compress


def rotating_by_rows(upstream: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Replace the function that rotates ``[tokens, heads, head_dim]`` by positions, for a ladder's rotary module."""

    def rotate(rotary_emb: Any, positions: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        of_groups = isinstance(positions, FirstPositions)
        if not isinstance(rotary_emb, LadderRotaryEmbedding):
            return upstream(rotary_emb, positions.as_subclass(torch.Tensor), tensor)
        ours = rotary_emb.groups if of_groups else rotary_emb
        # A step's tokens have the row numbers from 0.
        numbers = torch.arange(len(tensor), device=tensor.device)
        return ours.rotate(tensor, None, ours.rows, numbers, tensor.shape[-1], ours.is_neox_style)[0]

    return rotate
