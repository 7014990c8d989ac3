"""Finds a model of vLLM's Transformers backend that reads positions outside its rotary modules, by one forward.

The model gets row numbers for positions. Hugging Face's code hands them on from layer to layer, where anything may read
them: attention scaled by position, learned position embeddings, layers that rotate by themselves.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from vllm.forward_context import set_forward_context
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.models.transformers.base import Base

from ropeswitch.model_patches.switch.settings import UnsupportedError
from ropeswitch.model_patches.switch.transformers_rotary import RowsRotaryEmbedding

# Tokens of that forward.
TOKENS = 8
_READER = RowsRotaryEmbedding.forward.__code__
# What says nothing of the values.
_SHAPE = {
    torch.Tensor.shape.__get__,
    torch.Tensor.ndim.__get__,
    torch.Tensor.dtype.__get__,
    torch.Tensor.device.__get__,
    torch.Tensor.size,
    torch.Tensor.dim,
}


class RowNumbers(torch.Tensor):
    """Row numbers that only :class:`RowsRotaryEmbedding` may read."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` on plain tensors.

        Raises:
            UnsupportedError: naming the model's function, where it is not allowed to read them.
        """
        frame = sys._getframe(1)
        if func not in _SHAPE and frame.f_code is not _READER:
            while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "torch":
                frame = frame.f_back
            raise UnsupportedError(
                f"model: {frame.f_code.co_qualname} reads positions outside a rotary module; under a ladder the model gets "
                "row numbers in their place"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@torch.inference_mode()
def check_positions(backend: Base, numbers: torch.Tensor) -> None:
    """Refuse a model in which anything but our rotary modules reads positions.

    Runs the model once, eagerly, on token 0, as vLLM's profile run does: without requests and without a KV cache.

    Args:
        backend: The model, with :class:`RowsRotaryEmbedding` in place.
        numbers: ``[max tokens of a step]`` int64 row numbers.

    Raises:
        UnsupportedError: naming the function that reads positions.
    """
    count = min(TOKENS, len(numbers))
    tokens = torch.zeros(count, dtype=torch.int32, device=numbers.device)
    watched = numbers[None, :count].as_subclass(RowNumbers)
    earlier_stage = None
    if not backend.pp_group.is_first_rank:
        dtype = backend.model_config.dtype
        earlier_stage = backend.make_empty_intermediate_tensors(count, dtype, numbers.device)
    with set_forward_context(None, backend.vllm_config, num_tokens=count, skip_compiled=True), _without_lora(backend):
        backend(tokens, watched, earlier_stage)


@contextmanager
def _without_lora(model: nn.Module) -> Iterator[None]:
    """Leave adapters out, whose layers need requests."""
    wrapped = [module for module in model.modules() if isinstance(module, BaseLayerWithLoRA)]
    for module in wrapped:
        module.forward = module.base_layer.forward
    try:
        yield
    finally:
        for module in wrapped:
            del module.forward
