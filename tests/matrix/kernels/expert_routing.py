"""The routing of experts that vLLM's CPU build lacks, by vLLM's own Python for groups of experts, with one group."""

from collections.abc import Callable
from typing import Any

import torch
from vllm import _custom_ops
from vllm.model_executor.layers.fused_moe.router import zero_expert_router
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter, _grouped_topk


def topk_softmax(
    weights: torch.Tensor, indices: torch.Tensor, _: Any, logits: Any, renormalize: bool, bias: Any, *, is_padding: Any
) -> None:
    """``csrc/moe/topk_softmax_kernels.cu``: the experts with the largest softmax of ``logits``, and its values.

    ``bias`` counts in the choice of experts alone. Rows of padding, which nobody reads, are not left out.
    """
    found = _grouped_topk(logits, indices.shape[1], renormalize, 1, 1, "softmax", 1.0, bias)
    weights.copy_(found[0])
    indices.copy_(found[1])


def zero_experts(
    expert_indices: Any, expert_scales: Any, num_experts: int, zero_expert_type: str, hidden_states: torch.Tensor
) -> torch.Tensor:
    """What experts without weights add, those numbered from ``num_experts``: each returns its input, scaled."""
    assert zero_expert_type == "identity"
    scale = expert_scales.float().masked_fill(expert_indices < num_experts, 0.0).sum(-1, keepdim=True)
    return (hidden_states.float() * scale).to(hidden_states.dtype)


def install() -> None:
    """Define the missing kernels, and let vLLM's CPU router have a sigmoid without groups of experts."""
    _custom_ops.topk_softmax = topk_softmax
    zero_expert_router.zero_experts_compute_triton = zero_experts
    CPURouter._compute_routing = _routing_by_sigmoid(CPURouter._compute_routing)


def _routing_by_sigmoid(upstream: Callable[..., Any]) -> Callable[..., Any]:
    def route(self: Any, hidden: Any, logits: torch.Tensor, indices_type: Any, **more: Any) -> Any:
        if self.scoring_func != "sigmoid" or self.use_grouped_topk or self.custom_routing_function is not None:
            return upstream(self, hidden, logits, indices_type, **more)
        bias = self.e_score_correction_bias
        # Upstream's router without a bias scales nothing.
        factor = 1.0 if bias is None else self.routed_scaling_factor
        return _grouped_topk(logits, self.top_k, self.renormalize, 1, 1, "sigmoid", factor, bias)

    return route
