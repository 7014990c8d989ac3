"""Multi-head latent attention: which models, how many factors, and which softmax scales are refused."""

from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper
from vllm.model_executor.models.deepseek_v2 import DeepseekV2MLAAttention

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.models.unsupported import check_model
from ropeswitch.model_patches.switch.rows.softmax_scales import SoftmaxScales

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
MODEL: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "rope_theta": 10000.0, "hidden_size": 128, "num_attention_heads": 4,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32,
}  # fmt: skip


def ladder(pairs: int = 32, *softmax_scales: float | None) -> FactorLadder:
    scales = softmax_scales or (None,)
    return FactorLadder.checked(
        [
            {"name": f"s{i}", "max_length": 64 << i, "factors": [1.0] * pairs}
            | ({} if scale is None else {"softmax_scale": scale})
            for i, scale in enumerate(scales)
        ]
    )


def test_served() -> None:
    for architectures in (["DeepseekV3ForCausalLM"], ["NewForCausalLM"], None):
        assert check_model(MODEL | {"architectures": architectures}, ladder()) == 10000.0
    check_model(MODEL | {"rope_scaling": YARN}, ladder(32, 1.3, 1.0))


@pytest.mark.parametrize(
    ("change", "sets", "message"),
    [
        ({"index_topk": 2048}, ladder(), "index_topk: 2048: the indexer of sparse attention"),
        ({"rope_interleave": False}, ladder(), "rope_interleave: false"),
        ({"llama_4_scaling": {"beta": 0.1}}, ladder(), "llama_4_scaling: DeepSeek's layers scale attention by raw"),
        # The head's values that do not rotate need no factors.
        ({}, ladder(16), "each set has 16 factors, but the model rotates 64 of its head's values and needs 32"),
        ({}, ladder(48), "each set has 48 factors, but the model rotates 64"),
        ({"rope_scaling": YARN}, ladder(), r"sets\[0\].softmax_scale: missing; the model's config scales the softmax"),
        ({"rope_scaling": YARN}, ladder(32, 1.3, None), r"sets\[1\].softmax_scale: missing"),
        ({"kv_lora_rank": None}, ladder(32, 1.3), r"sets\[0\].softmax_scale: 1.3: allowed only for"),
    ],
)  # fmt: skip
def test_refused(change: dict[str, Any], sets: FactorLadder, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_model(MODEL | change, sets)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mscale": None}, "rope_scaling.mscale_all_dim: 1.0 alone means different things"),
        ({"mscale_all_dim": 0}, "rope_scaling.mscale: 1.0 alone means different things"),
        ({"attention_factor": 1.0}, "rope_scaling.attention_factor: 1.0 together with mscale"),
        ({"rope_type": "linear"}, "rope_scaling.mscale_all_dim: 1.0 with rope_type 'linear'"),
    ],
)
def test_yarn_parameters_without_one_meaning(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_model(MODEL | {"rope_scaling": YARN | change}, ladder(32, 1.3))


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
