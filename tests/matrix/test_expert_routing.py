"""The routing of experts in torch is that of vLLM's own Python, where vLLM has one."""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.router.cpu_router import _grouped_topk, _softmax_topk

from tests.matrix.expert_routing import topk_sigmoid, topk_softmax, zero_experts

TOKENS, EXPERTS, CHOSEN = 5, 8, 3


def outputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    indices = torch.empty(TOKENS, CHOSEN, dtype=torch.int32)
    return torch.empty(TOKENS, CHOSEN), indices, torch.empty_like(indices)


def by_expert(weights: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.zeros(TOKENS, EXPERTS).scatter(1, indices.long(), weights)


def test_softmax() -> None:
    logits = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0))
    for renormalize in (True, False):
        given = outputs()
        topk_softmax(*given, logits, renormalize, None, None)
        torch.testing.assert_close(by_expert(*given[:2]), by_expert(*_softmax_topk(logits, CHOSEN, renormalize)))


def test_sigmoid() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, EXPERTS, generator=generator)
    for bias in (None, torch.randn(EXPERTS, generator=generator)):
        given = outputs()
        topk_sigmoid(*given, logits, True, bias, 2.5, None)
        same: dict[str, Any] = {"topk": CHOSEN, "renormalize": True, "num_expert_group": 1, "topk_group": 1}
        same |= {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "e_score_correction_bias": bias}
        torch.testing.assert_close(by_expert(*given[:2]), by_expert(*_grouped_topk(logits, **same)))


def test_experts_without_weights_pass_their_input_on() -> None:
    scales, indices, hidden = torch.tensor([[0.5, 0.25], [0.5, 0.25]]), torch.tensor([[1, 4], [4, 5]]), torch.ones(2, 3)
    wanted = torch.tensor([[0.25] * 3, [0.75] * 3])
    torch.testing.assert_close(zero_experts(indices, scales, 4, "identity", hidden), wanted)
