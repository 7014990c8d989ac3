"""Kimi's delta rule in float32, whose decay is each key's own, by transformers' own function: vLLM's kernels are Triton's.

Everything around it is vLLM's: projections, the gated norm, the states and where they are kept.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.model_executor.models import bailing_moe_v3

from tests.matrix.kernels.delta_rule import attend, sequences


def gate(g: Any, A: Any, head_k_dim: int, g_bias: Any = None, lower_bound: float | None = None) -> Tensor:
    """Kimi's decay, one for each key, ``[tokens, heads, keys]``; the arguments are those of vLLM's ``fused_kda_gate``."""
    values = (g.float() if g_bias is None else g.float() + g_bias).unflatten(-1, (-1, head_k_dim))
    speed = A.float().exp().view(-1, 1)
    return -speed * F.softplus(values) if lower_bound is None else lower_bound * (speed * values).sigmoid()


def forward(layer: Any, *, g1: Any, beta: Any, core_attn_out: Tensor, **projected: Tensor) -> None:
    """The layers of Bailing V3: ``g1`` are those of :func:`gate`, ``[1, tokens, heads, keys]``."""
    mixed_qkv = torch.cat([projected[f"{each}_proj_states"] for each in "qkv"], dim=-1)
    weight = torch.cat([each.weight.squeeze(1) for each in (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d)])
    for part, mixed, state in sequences(layer, mixed_qkv, weight):
        query, key, value = (each.unflatten(-1, (-1, layer.head_dim)) for each in mixed.chunk(3, dim=-1))
        state = state[..., : layer.head_dim]
        core_attn_out[0, part] = attend(query, key, value, g1[0, part], beta[0, part], state)


def install() -> None:
    """Have the layers of Bailing V3 in this process compute so."""
    bailing_moe_v3.fused_kda_gate = gate
    bailing_moe_v3.BailingMoeV3KimiDeltaAttention._forward = forward
