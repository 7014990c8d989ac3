"""Kimi's delta rule in float32, whose decay is each key's own: vLLM's kernels for it are Triton's.

Everything around it is vLLM's: projections, the gated norm, the states and where they are kept.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import causal_conv1d_fn_cpu
from vllm.model_executor.models import bailing_moe_v3

from tests.matrix.delta_rule import delta_rule


def gate(
    g: torch.Tensor,
    A: torch.Tensor,
    head_k_dim: int,
    g_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
) -> torch.Tensor:
    """Logarithms of what is kept of the state, ``[tokens, heads, keys]``; arguments as of vLLM's ``fused_kda_gate``."""
    values = (g.float() if g_bias is None else g.float() + g_bias).unflatten(-1, (-1, head_k_dim))
    speed = A.float().exp().view(-1, 1)
    return -speed * F.softplus(values) if lower_bound is None else lower_bound * (speed * values).sigmoid()


def attend(
    layer: Any,
    q_proj_states: torch.Tensor,
    k_proj_states: torch.Tensor,
    v_proj_states: torch.Tensor,
    g1: torch.Tensor,
    beta: torch.Tensor,
    core_attn_out: torch.Tensor,
) -> None:
    """Convolve and attend, each sequence of a step by itself.

    Args:
        layer: vLLM's, with its states.
        q_proj_states: Queries before the convolution, ``[tokens, heads * keys]``.
        k_proj_states: Keys, in the same shape.
        v_proj_states: Values, in the same shape.
        g1: As :func:`gate` gives it, with one more dimension in front.
        beta: What is written of the value, ``[1, tokens, heads]``.
        core_attn_out: ``[1, tokens, heads, values]``.
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
    mixed = torch.cat((q_proj_states, k_proj_states, v_proj_states), dim=-1)[: metadata.num_actual_tokens].T
    weight = torch.cat([each.weight.squeeze(1) for each in (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d)])
    mixed = causal_conv1d_fn_cpu(mixed, weight, None, states, starts, slots, has_state).T
    query, key, value = (each.unflatten(-1, (-1, layer.head_dim)) for each in mixed.chunk(3, dim=-1))
    for number, (start, end) in enumerate(pairwise(starts.tolist())):
        state = matrices[slots[number]][..., : layer.head_dim]
        if not has_state[number]:
            state.zero_()
        part = slice(start, end)
        core_attn_out[0, part] = delta_rule(query[part], key[part], value[part], g1[0, part], beta[0, part], state)


def install() -> None:
    """Have the layers of Bailing V3 in this process compute so."""
    bailing_moe_v3.fused_kda_gate = gate
    bailing_moe_v3.BailingMoeV3KimiDeltaAttention._forward = attend
