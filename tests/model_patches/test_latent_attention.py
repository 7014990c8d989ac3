"""The softmax scales of multi-head latent attention: each token has its set's, or the model is refused."""

from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper
from vllm.model_executor.models.deepseek_v2 import DeepseekV2MLAAttention

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.rows.softmax_scales import SoftmaxScales


def ladder(pairs: int = 32, *softmax_scales: float | None) -> FactorLadder:
    scales = softmax_scales or (None,)
    return FactorLadder.checked(
        [
            {"name": f"s{i}", "max_length": 64 << i, "factors": [1.0] * pairs}
            | ({} if scale is None else {"softmax_scale": scale})
            for i, scale in enumerate(scales)
        ]
    )


def test_scales_of_a_step() -> None:
    sets = ladder(32, 1.5, None, 2.5)
    scales = SoftmaxScales(RopeSettings(sets, 1e4).ladder, 12, torch.device("cpu"))
    scales.fill(6, torch.tensor([2, 0, 1]), torch.tensor([0, 1, 4, 6], dtype=torch.int32))
    assert scales.scales.tolist() == [2.5, 1.5, 1.5, 1.5, 1.0, 1.0, 1, 1, 1, 1, 1, 1]


def test_an_attention_layer_that_no_ladder_reaches() -> None:
    class Layer(nn.Module, AttentionLayerBase):
        def get_attn_backend(self) -> Any: ...

        def get_kv_cache_spec(self, vllm_config: Any) -> Any: ...

    model = nn.ModuleDict({"self_attn": Layer()})
    with pytest.raises(UnsupportedError, match=r"softmax_scale: self_attn, Layer, has a softmax scale that no ladder"):
        SoftmaxScales(ladder(32, 1.5), 4, torch.device("cpu")).bind(model)


def test_latent_attention_whose_scale_no_yarn_raises() -> None:
    """A wrapper that ignores ``mscale_all_dim`` where DeepSeek's layers around it do not."""

    class Latent(MultiHeadLatentAttentionWrapper, AttentionLayerBase):
        def __init__(self) -> None:
            nn.Module.__init__(self)

        def get_attn_backend(self) -> Any: ...

        def get_kv_cache_spec(self, vllm_config: Any) -> Any: ...

    class Scaling(DeepseekV2MLAAttention):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.mla_attn = Latent()

    scales = SoftmaxScales(ladder(32, 1.5), 4, torch.device("cpu"))
    model = nn.ModuleDict({"self_attn": Scaling()})
    scales.bind(model)
    assert model.get_submodule("self_attn.mla_attn").softmax_scales is scales.scales
    with pytest.raises(UnsupportedError, match=r"softmax_scale: mla_attn, Latent, has a softmax scale that no ladder"):
        scales.bind(nn.ModuleDict({"mla_attn": Latent()}))
