"""Finds a model that reads positions outside its rotary modules, by one forward on marked row numbers.

A model gets row numbers for positions and hands them on from layer to layer, where anything may read them: attention scaled
by position, learned position embeddings, layers that rotate by themselves. Those would take a token's row for its place.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_pp_group
from vllm.forward_context import set_forward_context
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.models.interfaces import supports_multimodal
from vllm.model_executor.models.transformers.base import Base as TransformersBackend

from ropeswitch.model_patches.switch.position_readers import reading_true_positions
from ropeswitch.model_patches.switch.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.settings import UnsupportedError
from ropeswitch.model_patches.switch.softmax_scales import scaling_queries
from ropeswitch.model_patches.switch.transformers_rotary import RowsRotaryEmbedding

# Tokens of that forward.
TOKENS = 8
# Attributes and methods that do not read values.
_SHAPE = {
    torch.Tensor.shape.__get__,
    torch.Tensor.ndim.__get__,
    torch.Tensor.dtype.__get__,
    torch.Tensor.device.__get__,
    torch.Tensor.size,
    torch.Tensor.dim,
}


def _inner(wrapper: Callable[..., Any]) -> CodeType:
    """The code of the only function that ``wrapper`` makes."""
    [code] = [each for each in wrapper.__code__.co_consts if isinstance(each, CodeType)]
    return code


_READERS = {
    LadderRotaryEmbedding.forward.__code__,
    RowsRotaryEmbedding.forward.__code__,
    _inner(reading_true_positions),
    _inner(scaling_queries),
}


class RowNumbers(torch.Tensor):
    """Row numbers that only our own modules may read."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` on plain tensors.

        Raises:
            UnsupportedError: naming the model's function, where it is not allowed to read them.
        """
        frame: FrameType | None = sys._getframe(1)
        if func not in _SHAPE and not _reads_rows(frame):
            raise UnsupportedError(
                f"model: {_caller(frame)} reads positions outside a rotary module; under a ladder the model gets row "
                "numbers in their place"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _reads_rows(frame: FrameType | None) -> bool:
    """Whether one of our modules made the call: at once, or through a function that it calls."""
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code in _READERS:
            return True
        frame = frame.f_back
    return False


def _caller(frame: FrameType | None) -> str:
    while frame is not None and frame.f_back is not None and _module(frame).partition(".")[0] == "torch":
        frame = frame.f_back
    return "a function" if frame is None else frame.f_code.co_qualname


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


@torch.inference_mode()
def check_positions(model: nn.Module, vllm_config: VllmConfig, numbers: torch.Tensor) -> None:
    """Refuse a model in which anything but our own modules reads positions.

    Runs the language model once, eagerly, on token 0, as vLLM's profile run does: without requests and without a KV cache.

    Args:
        model: The loaded model, bound to its rows.
        vllm_config: The engine's.
        numbers: ``[tokens]`` or ``[axes, tokens]`` int64 row numbers, as the model gets them.

    Raises:
        UnsupportedError: naming the function that reads positions.
    """
    text: Any = model.get_language_model() if supports_multimodal(model) else model
    numbers = numbers[..., :TOKENS]
    count = numbers.shape[-1]
    if isinstance(text, TransformersBackend):
        # Else it adds the batch's dimension by itself, which is a read.
        numbers = numbers[None]
    tokens = torch.zeros(count, dtype=torch.int32, device=numbers.device)
    earlier_stage = None
    if not get_pp_group().is_first_rank:
        dtype = vllm_config.model_config.dtype
        earlier_stage = text.make_empty_intermediate_tensors(count, dtype, numbers.device)
    with set_forward_context(None, vllm_config, num_tokens=count, skip_compiled=True), _without_lora(text):
        text(tokens, numbers.as_subclass(RowNumbers), earlier_stage)


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
