"""``vllm.model_executor.layers.mla.MultiHeadLatentAttentionWrapper.forward``: wrapped to scale each token's queries.

replaces: the forward of multi-head latent attention, and ``DeepseekV2Attention.forward``, the same models' plain attention
    (``VLLM_MLA_DISABLE=1``).
why: DeepseekV2's layers fix YaRN's softmax scale (``mscale_all_dim``) when they are built, but each factor set has its own.
what differs: queries are multiplied by their request's ``softmax_scale``, through the argument ``llama_4_scaling``, which
    upstream applies to rotated queries. In bfloat16 this rounds the queries once more than upstream's scale does.
limits: only ladders with softmax scales; otherwise nothing is wrapped. A model with any other attention layer is refused.
when it can go: when a layer's softmax scale can be chosen per request.
"""

import pkgutil
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.rows.position_readers import looked_up, names_of

OWNERS = (
    "vllm.model_executor.layers.mla.MultiHeadLatentAttentionWrapper",
    "vllm.model_executor.models.deepseek_v2.DeepseekV2Attention",
)
TARGETS = tuple(f"{owner}.forward" for owner in OWNERS)
# Layers that multiply YaRN's mscale_all_dim into their softmax scale, as in transformers: they contain the first of OWNERS
# or are the second. A set's softmax scale replaces theirs.
SCALING = {
    "vllm.model_executor.models.deepseek_v2.DeepseekV2MLAAttention",
    "vllm.model_executor.models.deepseek_v2.DeepseekV2Attention",
    "vllm.model_executor.models.AXK1.AXK1MLAAttention",
}


class SoftmaxScales:
    """The softmax scales of one step's tokens, on one device; ``scales`` is ``[max_num_tokens]`` float32."""

    def __init__(self, ladder: FactorLadder, max_num_tokens: int, device: torch.device) -> None:
        self.scales = torch.empty(max_num_tokens, dtype=torch.float32, device=device)
        self._tokens = torch.empty(max_num_tokens, dtype=torch.int32, device=device)
        self._ladder = ladder
        self.restore()

    def restore(self) -> None:
        """Write everything that is constant across steps; buffers keep their addresses."""
        self.scales.fill_(1.0)
        torch.arange(len(self._tokens), out=self._tokens)
        scales = [each.softmax_scale or 1.0 for each in self._ladder.sets]
        self._by_set = torch.tensor(scales, device=self.scales.device)

    def fill(self, num_tokens: int, sets: torch.Tensor, starts: torch.Tensor) -> None:
        """Write the scales of a step's tokens; ``sets`` and ``starts`` are those of ``RotationRows.fill``."""
        requests = torch.bucketize(self._tokens[:num_tokens], starts[1:], right=True)
        self.scales[:num_tokens] = self._by_set[sets[requests]]

    def bind(self, model: nn.Module) -> None:
        """Attach these scales to every wrapped attention layer; refuse other layers, and those that YaRN does not scale."""
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        owners = tuple(map(pkgutil.resolve_name, OWNERS))
        scaling = tuple(name for name, module in model.named_modules() if names_of(module) & SCALING)
        for name, module in model.named_modules():
            inside = any(name == each or name.startswith(f"{each}.") for each in scaling)
            if isinstance(module, owners) and inside:
                module.register_buffer("softmax_scales", self.scales, persistent=False)
            elif isinstance(module, AttentionLayerBase) and not inside:
                raise UnsupportedError(
                    f"sets[].softmax_scale: {name}, {type(module).__name__}, has a softmax scale that no ladder reaches; "
                    "leave mscale_all_dim and softmax_scale out if the model was trained without them"
                )


def scaling_queries(upstream: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap a layer's forward; a layer without softmax scales runs as in upstream."""

    def forward(
        self: Any, positions: torch.Tensor, hidden_states: torch.Tensor, llama_4_scaling: torch.Tensor | None = None
    ) -> torch.Tensor:
        scales: torch.Tensor | None = getattr(self, "softmax_scales", None)
        if scales is not None:
            llama_4_scaling = looked_up(scales, positions)[:, None, None]
        return upstream(self, positions, hidden_states, llama_4_scaling)

    return forward
