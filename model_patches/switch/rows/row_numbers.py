"""Detects a model that reads positions outside its rotary modules, by one forward on marked row numbers.

A model gets row numbers instead of positions and passes them from layer to layer, where any code may read them: attention
scaled by position, learned position embeddings, layers that do their own rotation. Such code would mistake a token's row
number for its position.

The forward has no requests, so it misses code that reads positions only if there is attention metadata. In vLLM 0.32 and
0.33 only sparse indexers do that; ``unsupported.py`` refuses those whose code was not read.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_pp_group
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.runner.moe_runner_interface import MoERunnerInterface
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.mamba.linear.minimax_linear_attn import linear_attention
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.transformers.base import Base as TransformersBackend

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.rows.position_readers import looked_up
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.table_readers import readers
from ropeswitch.model_patches.switch.rows.transformers_rotary import RowsRotaryEmbedding

# Tokens in that forward.
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
# The dispatch key of ``__torch_dispatch__``.
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
# The operator that passes positions to a linear attention layer.
_LINEAR_ATTENTION = "vllm.linear_attention"
# Functions that may read row numbers, themselves or through functions that they call.
_READERS = {LadderRotaryEmbedding.forward.__code__, RowsRotaryEmbedding.forward.__code__, looked_up.__code__}


class RowNumbers(torch.Tensor):
    """Row numbers that only our own modules may read."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` on plain tensors; refuse a caller that may not read them."""
        if str(func).startswith(_LINEAR_ATTENTION):
            # As the operator does, but with row numbers that still detect reads.
            return linear_attention(*args, **(kwargs or {}))
        frame = sys._getframe(1)
        # A slice of row numbers is still row numbers.
        sliced = func is torch.Tensor.__getitem__ and isinstance(args[1], slice)
        if not sliced and func not in _SHAPE and not _reads_rows(frame):
            raise _reads(frame)
        with torch._C.DisableTorchFunctionSubclass(), torch._C._ExcludeDispatchKeyGuard(_PYTHON):
            found = func(*args, **(kwargs or {}))
            return found.as_subclass(cls) if sliced else found

    @classmethod
    def __torch_dispatch__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse reads that bypass ``__torch_function__``, such as those of ``torch.tensor``, ``vmap`` and TorchScript."""
        raise _reads(sys._getframe(1))


def _reads(frame: FrameType) -> UnsupportedError:
    """Return the error that names the first caller outside torch."""
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "torch":
        frame = frame.f_back
    return UnsupportedError(
        f"model: {frame.f_code.co_qualname} reads positions outside a rotary module; under a ladder the "
        "model gets row numbers in their place"
    )


def _reads_rows(frame: FrameType | None) -> bool:
    """Return whether one of our modules made the call, directly or through a function that it calls."""
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code in _READERS:
            return True
        frame = frame.f_back
    return False


@torch.inference_mode()
def check_positions(model: nn.Module, vllm_config: VllmConfig, numbers: torch.Tensor) -> None:
    """Refuse a model, bound to its rows, in which anything but our own modules reads positions.

    Runs it once on ``numbers``, ``[tokens]`` int64 row numbers, eagerly, like vLLM's profile run: without requests or a KV
    cache. Weights may hold anything: linear layers, embeddings and experts return zeros.

    Raises:
        UnsupportedError: naming the function that reads positions.
    """
    config, count = vllm_config.model_config, len(numbers)
    rows = numbers.expand(3, -1) if config.uses_mrope else numbers
    if isinstance(model, TransformersBackend):
        # Otherwise the backend adds the batch dimension itself, which is a read.
        rows = rows[None]
    tokens: torch.Tensor | None = torch.zeros(count, dtype=torch.int32, device=numbers.device)
    inputs = {"dtype": config.dtype, "device": numbers.device}
    embeddings = earlier_stage = None
    if not get_pp_group().is_first_rank:
        earlier_stage = model.make_empty_intermediate_tensors(count, **inputs)
    elif config.supports_multimodal_inputs:
        embeddings = torch.zeros(count, config.get_inputs_embeds_size(), **inputs)
        tokens = tokens if model.requires_raw_input_tokens else None
    context = set_forward_context(None, vllm_config, num_tokens=count, skip_compiled=True)
    # In compiled code, a compiler error would hide ours.
    with context, _without_weights(model), torch.compiler.set_stance("force_eager"):
        model(
            input_ids=tokens,
            positions=rows.as_subclass(RowNumbers),
            intermediate_tensors=earlier_stage,
            inputs_embeds=embeddings,
        )


@contextmanager
def _without_weights(model: nn.Module) -> Iterator[None]:
    """Make layers return zeros if kernels read their weights, possibly in a layout that loading creates."""
    methods = [each.quant_method for each in model.modules() if isinstance(each, LinearBase | VocabParallelEmbedding)]
    experts = [each for each in model.modules() if isinstance(each, MoERunnerInterface)]
    attention = readers(model)
    # Qwen 4's embeddings of token pairs and triples, which get no positions, want inputs that a state prepares.
    embeddings = [(each, each.ple) for each in model.modules() if isinstance(getattr(each, "ple", None), nn.Module)]
    for method in methods:
        method.apply, method.embedding = _linear, _embedding
    for layer in attention:
        layer.forward = _attention
    for layer, _ in embeddings:
        layer.ple = None
    for each in experts:
        each.forward = lambda hidden_states, *_, **__: torch.zeros_like(hidden_states)
    try:
        yield
    finally:
        for method in methods:
            # Layers may share a method.
            vars(method).pop("apply", None)
            vars(method).pop("embedding", None)
        for each in (*experts, *attention):
            del each.forward
        for layer, ple in embeddings:
            layer.ple = ple


def _attention(positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
    """Stand in for a layer whose kernels read rows as a table, which needs metadata: only by the positions of all tokens."""
    if not isinstance(positions, RowNumbers) or positions.shape != hidden_states.shape[:1]:
        raise UnsupportedError(
            "model: gives sparse attention other positions than its own, for which a ladder has no rows"
        )
    return torch.zeros_like(hidden_states)


def _linear(layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    width = getattr(layer, "output_size_per_partition", layer.output_size)
    return x.new_zeros(*x.shape[:-1], width)


def _embedding(layer: Any, tokens: torch.Tensor) -> torch.Tensor:
    # While loading, torch's default dtype is the model's.
    return tokens.new_zeros(*tokens.shape, layer.embedding_dim, dtype=torch.get_default_dtype())
