"""``vllm.model_executor.models.llama4.Llama4Attention._get_attn_scale``: wrapped to read a token's true position.

replaces: that method, and Ministral 3's ``MistralAttention._get_llama_4_attn_scale``.
why: both scale attention by position, but the model gets row numbers instead.
what differs: they get the true positions that the row numbers refer to.
limits: these two methods.
when it can go: when the runner no longer passes row numbers to the model.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# Methods of attention layers that scale by position.
METHODS = {
    "vllm.model_executor.models.llama4.Llama4Attention": "_get_attn_scale",
    "vllm.model_executor.models.mistral.MistralAttention": "_get_llama_4_attn_scale",
}


def give_positions(model: nn.Module, positions: torch.Tensor) -> bool:
    """Have a model's position-reading layers look row numbers up in ``positions``; return whether it has such layers.

    The caller fills ``positions``, ``[max tokens of a step]`` int64, before each forward.
    """
    readers = [module for module in model.modules() if names_of(module) & set(METHODS)]
    for module in readers:
        module.register_buffer("true_positions", positions, persistent=False)
    return bool(readers)


def names_of(module: nn.Module) -> set[str]:
    """Return the full names of a module's class and its base classes."""
    return {f"{cls.__module__}.{cls.__qualname__}" for cls in type(module).__mro__}


def reading_true_positions(upstream: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap a method that takes positions; in a model without a ladder it gets them unchanged."""

    def scale(self: Any, positions: torch.Tensor) -> torch.Tensor:
        known = getattr(self, "true_positions", None)
        return upstream(self, positions if known is None else looked_up(known, positions))

    return scale


def looked_up(values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return each token's entry of ``values``, by row number: ``[tokens]``."""
    return values.index_select(0, numbers)
