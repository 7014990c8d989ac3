"""What vLLM's CPU build lacks of the routing of experts: whole references in float32 torch, for every engine alike.

On GPUs these are compiled ops and a Triton kernel, beside the same Python of vLLM.
"""

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.router import zero_expert_router
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import fused_topk_bias
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk

# ``torch.library`` keeps a definition for as long as its library lives.
_LIBRARY = torch.library.Library("_moe_C", "FRAGMENT")
_OUTPUTS = "Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices"


def install() -> None:
    """Define the missing ops, and have vLLM's CPU router take the functions of its GPU routers where it has none."""
    for name, scale in (("topk_softmax", ""), ("topk_sigmoid", "float routed_scaling_factor, ")):
        if not hasattr(torch.ops._moe_C, name):
            arguments = f"{_OUTPUTS}, Tensor gating_output, bool renormalize, Tensor? bias, {scale}Tensor? is_padding"
            _LIBRARY.define(f"{name}({arguments}) -> ()")
    _LIBRARY.impl("topk_softmax", topk_softmax, "CPU")
    _LIBRARY.impl("topk_sigmoid", topk_sigmoid, "CPU")
    CPURouter._compute_routing = _routing_by_sigmoid(CPURouter._compute_routing)
    zero_expert_router.zero_experts_compute_triton = zero_experts


def topk_softmax(
    weights: torch.Tensor,
    indices: torch.Tensor,
    token_expert_indices: torch.Tensor,
    logits: torch.Tensor,
    renormalize: bool,
    bias: torch.Tensor | None,
    is_padding: torch.Tensor | None,
) -> None:
    """``csrc/moe/topk_softmax_kernels.cu``: the experts with the largest softmax of ``logits``, and its values.

    Rows of padding, which nobody reads, are not left out.
    """
    _topk(weights, indices, logits.float().softmax(-1), renormalize, bias)


def topk_sigmoid(
    weights: torch.Tensor,
    indices: torch.Tensor,
    token_expert_indices: torch.Tensor,
    logits: torch.Tensor,
    renormalize: bool,
    bias: torch.Tensor | None,
    routed_scaling_factor: float,
    is_padding: torch.Tensor | None,
) -> None:
    """The same with a sigmoid, and with the weights scaled."""
    _topk(weights, indices, logits.float().sigmoid(), renormalize, bias)
    weights.mul_(routed_scaling_factor)


def _topk(
    weights: torch.Tensor, indices: torch.Tensor, scores: torch.Tensor, renormalize: bool, bias: torch.Tensor | None
) -> None:
    """Write the largest ``scores`` of each token; ``bias`` counts in the choice of experts alone."""
    chosen = (scores if bias is None else scores + bias).topk(indices.shape[1], dim=-1).indices
    values = scores.gather(1, chosen)
    weights.copy_(values / values.sum(-1, keepdim=True) if renormalize else values)
    indices.copy_(chosen)


def zero_experts(
    expert_indices: torch.Tensor,
    expert_scales: torch.Tensor,
    num_experts: int,
    zero_expert_type: str,
    hidden_states: torch.Tensor,
) -> torch.Tensor:
    """What experts without weights add, those numbered from ``num_experts``: each returns its input, scaled."""
    assert zero_expert_type == "identity"
    scale = expert_scales.float().masked_fill(expert_indices < num_experts, 0.0).sum(-1, keepdim=True)
    return (hidden_states.float() * scale).to(hidden_states.dtype)


def _routing_by_sigmoid(upstream: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the router's method: a sigmoid without groups of experts goes to vLLM's other routers' functions."""

    def route(
        self: Any, hidden: torch.Tensor, logits: torch.Tensor, indices_type: torch.dtype | None, **more: Any
    ) -> Any:
        if self.scoring_func != "sigmoid" or self.use_grouped_topk or self.custom_routing_function is not None:
            return upstream(self, hidden, logits, indices_type, **more)
        if (bias := self.e_score_correction_bias) is None:
            return fused_topk(hidden, logits, self.top_k, self.renormalize, indices_type, "sigmoid")[:2]
        factor = self.routed_scaling_factor
        arguments = ("sigmoid", bias.data, self.top_k, self.renormalize, indices_type)
        return fused_topk_bias(hidden, logits, *arguments, routed_scaling_factor=factor)

    return route
