"""Lightning attention, and the gated norm behind it, in float32: vLLM's kernels for them are of GPUs.

Everything around them is vLLM's: projections, rotation, the states and where they are kept.
"""

import torch
from vllm.model_executor.layers.mamba.linear import bailing_linear_attn, minimax_linear_attn
from vllm.third_party.flash_linear_attention.ops import layernorm_guard


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slope: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """What one sequence reads from the state, ``[heads, tokens, values]``; leaves the last state in ``state``.

    Args:
        query: ``[heads, tokens, keys]``.
        key: The same shape.
        value: ``[heads, tokens, values]``.
        slope: How fast each head forgets, ``[heads]`` values of any shape.
        state: ``[heads, keys, values]``.
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


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_caches: torch.Tensor,
    slope_rate: torch.Tensor,
    slot_idx: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """vLLM's ``linear_decode_forward_triton``: one token of each sequence."""
    slots = zip(q, k, v, slot_idx.tolist(), strict=True)
    return torch.stack([attend(*each, slope_rate, kv_caches[slot]).flatten() for *each, slot in slots])


def norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = True,
    activation: str = "swish",
) -> torch.Tensor:
    """``layernorm_fn`` and ``rmsnorm_fn`` of root mean squares, by upstream's own reference, which has no sigmoid."""
    assert is_rms_norm and (z is None or (norm_before_gate and activation == "sigmoid")), "another norm"
    normed: torch.Tensor = layernorm_guard.rms_norm_ref(x, weight, bias, eps=eps, group_size=group_size)
    return normed if z is None else normed * z.float().sigmoid()


def install() -> None:
    """Have Bailing's layers in this process compute so."""
    minimax_linear_attn.lightning_attention = prefill
    minimax_linear_attn.linear_decode_forward_triton = decode
    bailing_linear_attn.layernorm_fn = norm
    layernorm_guard.rmsnorm_fn = norm
