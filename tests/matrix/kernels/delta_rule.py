"""The gated delta rule in float32, by transformers' own function: vLLM's kernels are for GPUs, or on CPUs for bfloat16 only.

Everything around it is vLLM's: projections, the convolution, the gated norm, the states and where they are kept.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.gdn import olmo_gdn_linear_attn
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import causal_conv1d_fn_cpu
from vllm.utils.torch_utils import LayerNameType, _resolve_layer_name

Sequence = tuple[slice, Tensor, Tensor]


def sequences(layer: Any, mixed: Tensor, weight: Tensor) -> Iterator[Sequence]:
    """Convolve a step's queries, keys and values; yield each sequence's tokens, convolved values and state.

    Args:
        layer: vLLM's layer, with its states.
        mixed: Queries, keys and values before the convolution, ``[tokens, channels]``.
        weight: Weights of the convolution, ``[channels, width]``.
    """
    metadata = (get_forward_context().attn_metadata or {}).get(layer.prefix)
    if metadata is None:
        # A dummy run.
        return
    assert metadata.spec_sequence_masks is None, "speculation"
    starts, slots = metadata.non_spec_query_start_loc, metadata.non_spec_state_indices_tensor
    states, matrices = layer.kv_cache
    states = states if is_conv_state_dim_first() else states.transpose(-1, -2)
    # None in a step of decodes.
    has_state = metadata.has_initial_state
    has_state = torch.ones(len(slots), dtype=torch.bool) if has_state is None else has_state
    mixed = causal_conv1d_fn_cpu(
        mixed[: metadata.num_actual_tokens].T, weight, None, states, starts, slots, has_state
    ).T
    for number, (start, end) in enumerate(pairwise(starts.tolist())):
        state = matrices[slots[number]]
        if not has_state[number]:
            state.zero_()
        yield slice(start, end), mixed[start:end], state


def attend(query: Any, key: Any, value: Any, decay: Any, beta: Any, state: Tensor) -> Tensor:
    """What one sequence reads, ``[tokens, heads, values]``; leaves the last state in ``state``, ``[heads, keys, values]``.

    ``decay`` is the logarithm of what is kept of the state, ``[tokens, heads, keys or 1]``.
    """
    given = (each.unsqueeze(0) for each in (query, key, value, decay, beta))
    read, last = recurrent_kimi_delta_attention(*given, state.unsqueeze(0), True, use_qk_l2norm_in_kernel=True)
    state.copy_(last[0])
    return read[0]


def gated(layer: Any, mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor) -> None:
    """The layers of Qwen and OLMo: betas are made of ``b``, decays of ``a``, each ``[tokens, heads]``."""
    decay = (-layer.A_log.exp() * F.softplus(a + layer.dt_bias)).unsqueeze(-1)
    beta = b.sigmoid() * (2 if getattr(layer, "allow_neg_eigval", False) else 1)
    for part, mixed, state in sequences(layer, mixed_qkv, layer.conv1d.weight.squeeze(1)):
        query, key, value = (each[0] for each in layer.rearrange_mixed_qkv(mixed))
        query, key = (each.repeat_interleave(value.shape[1] // each.shape[1], dim=1) for each in (query, key))
        # A slot holds keys by values, as on vLLM's CPUs, whatever its shape says.
        state = state.view(value.shape[1], key.shape[2], value.shape[2])
        core_attn_out[part] = attend(query, key, value, decay[part], beta[part], state)


def install() -> None:
    """Have the layers of Qwen and OLMo in this process compute so."""

    # vLLM reads the types of an operator.
    def qwen(mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor, layer_name: LayerNameType) -> None:
        gated(get_forward_context().no_compile_layers[_resolve_layer_name(layer_name)], mixed_qkv, b, a, core_attn_out)

    gdn_attention.cpu_gdn_attention_core = qwen
    olmo_gdn_linear_attn.OlmoHybridGatedDeltaNetAttention._forward_core = gated
    # Triton's allocator, whose kernels do not run.
    olmo_gdn_linear_attn.set_triton_allocator = lambda _: None
