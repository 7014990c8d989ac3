"""Lightning attention, and the gated norm after it, in float32: vLLM's kernels for them are for GPUs.

Everything around them is vLLM's: projections, rotation, the states and where they are kept.
"""

from typing import Any

import torch
from vllm.model_executor.layers.mamba.linear import bailing_linear_attn, minimax_linear_attn
from vllm.third_party.flash_linear_attention.ops import layernorm_guard


def attend(query: Any, key: Any, value: torch.Tensor, slope: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """What one sequence reads, ``[heads, tokens, values]``; leaves the last state in ``state``, ``[heads, keys, values]``.

    ``slope`` is how fast each head forgets, ``[heads]`` values of any shape.
    """
    kept = (-slope.view(-1, 1, 1)).exp()
    read = torch.empty_like(value)
    for token in range(query.shape[1]):
        state.mul_(kept).add_(key[:, token, :, None] * value[:, token, None, :])
        read[:, token] = torch.einsum("hk,hkv->hv", query[:, token], state)
    return read


def prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ed: torch.Tensor, *, block_size: int, kv_history: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """vLLM's ``lightning_attention`` of one sequence; the last of the states returned is the one that is kept."""
    state = kv_history[0].clone()
    return attend(q[0], k[0], v[0], ed, state).unsqueeze(0), state[None, :, None]


def decode(q: Any, k: Any, v: Any, caches: Any, slope: torch.Tensor, slots: torch.Tensor, _: int) -> torch.Tensor:
    """vLLM's ``linear_decode_forward_triton``: one token of each sequence."""
    sequences = zip(q, k, v, slots.tolist(), strict=True)
    return torch.stack([attend(*each, slope, caches[slot]).flatten() for *each, slot in sequences])


def norm(x: Any, weight: Any, bias: Any, z: Any = None, *, group_size: Any = None, **kind: Any) -> torch.Tensor:
    """``layernorm_fn`` and ``rmsnorm_fn`` of root mean squares, by upstream's own reference, which has no sigmoid."""
    gated_after = kind.get("norm_before_gate", True) and kind.get("activation") == "sigmoid"
    assert kind.get("is_rms_norm", True) and (z is None or gated_after), kind
    normed: torch.Tensor = layernorm_guard.rms_norm_ref(x, weight, bias, eps=kind["eps"], group_size=group_size)
    return normed if z is None else normed * z.float().sigmoid()


def install() -> None:
    """Have Bailing's layers in this process compute so."""
    minimax_linear_attn.lightning_attention = prefill
    minimax_linear_attn.linear_decode_forward_triton = decode
    bailing_linear_attn.layernorm_fn = norm
    layernorm_guard.rmsnorm_fn = norm
