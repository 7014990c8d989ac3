"""The gated delta rule in float32: vLLM's kernels for it are of GPUs, or on CPUs of bfloat16 only.

Everything around it is vLLM's: projections, the convolution, the gated norm, the states and where they are kept.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.gdn import olmo_gdn_linear_attn
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import causal_conv1d_fn_cpu
from vllm.utils.torch_utils import LayerNameType, _resolve_layer_name


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """What one sequence reads from the state, ``[tokens, heads, values]``; leaves the last state in ``state``.

    Args:
        query: ``[tokens, heads, keys]``, normalized here, as is ``key``.
        key: The same shape.
        value: ``[tokens, heads, values]``.
        decay: Logarithm of what is kept of the state, ``[tokens, heads]`` or, for each key, ``[tokens, heads, keys]``.
        beta: What is written of the value, ``[tokens, heads]``.
        state: ``[heads, keys, values]``.
    """
    query, key = (each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (query, key))
    query = query / query.shape[-1] ** 0.5
    read = torch.empty_like(value)
    for token in range(len(query)):
        state *= decay[token].exp().view(len(state), -1, 1)
        known = torch.einsum("hk,hkv->hv", key[token], state)
        change = (value[token] - known) * beta[token].unsqueeze(-1)
        state += key[token].unsqueeze(-1) * change.unsqueeze(-2)
        read[token] = torch.einsum("hk,hkv->hv", query[token], state)
    return read


def gated(layer: Any, mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, core_attn_out: torch.Tensor) -> None:
    """Convolve and attend, each sequence of a step by itself.

    Args:
        layer: vLLM's, with its states.
        mixed_qkv: Queries, keys and values of all tokens, before the convolution.
        b: What betas are made of, ``[tokens, heads]``.
        a: What decays are made of, ``[tokens, heads]``.
        core_attn_out: ``[tokens, heads, values]``.
    """
    metadata = (get_forward_context().attn_metadata or {}).get(layer.prefix)
    if metadata is None:
        # Of a rehearsal.
        return
    assert metadata.spec_sequence_masks is None, "speculation"
    starts, slots = metadata.non_spec_query_start_loc, metadata.non_spec_state_indices_tensor
    states, matrices = layer.kv_cache
    states = states if is_conv_state_dim_first() else states.transpose(-1, -2)
    # Nothing says so of a step that only goes on.
    has_state = metadata.has_initial_state
    has_state = torch.ones(len(slots), dtype=torch.bool) if has_state is None else has_state
    mixed = mixed_qkv[: metadata.num_actual_tokens].T
    mixed = causal_conv1d_fn_cpu(mixed, layer.conv1d.weight.squeeze(1), None, states, starts, slots, has_state).T
    query, key, value = (each[0] for each in layer.rearrange_mixed_qkv(mixed))
    query, key = (each.repeat_interleave(value.shape[1] // each.shape[1], dim=1) for each in (query, key))
    decay = -layer.A_log.exp() * F.softplus(a + layer.dt_bias)
    beta = b.sigmoid() * (2 if getattr(layer, "allow_neg_eigval", False) else 1)
    for number, (start, end) in enumerate(pairwise(starts.tolist())):
        # A slot holds keys by values, as on vLLM's CPUs, whatever its shape says.
        state = matrices[slots[number]].view(value.shape[1], key.shape[2], value.shape[2])
        if not has_state[number]:
            state.zero_()
        part = slice(start, end)
        core_attn_out[part] = delta_rule(query[part], key[part], value[part], decay[part], beta[part], state)


def _qwen(
    mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, core_attn_out: torch.Tensor, layer_name: LayerNameType
) -> None:
    """The operator that vLLM makes of it."""
    gated(get_forward_context().no_compile_layers[_resolve_layer_name(layer_name)], mixed_qkv, b, a, core_attn_out)


def install() -> None:
    """Have the layers of Qwen and OLMo in this process compute so."""
    gdn_attention.cpu_gdn_attention_core = _qwen
    olmo_gdn_linear_attn.OlmoHybridGatedDeltaNetAttention._forward_core = gated
    # Of Triton, whose kernels are not run.
    olmo_gdn_linear_attn.set_triton_allocator = lambda _: None
