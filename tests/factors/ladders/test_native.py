"""Factors and attention scales of a config's scaling, against transformers' and vLLM's own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.dynamic_ntk_alpha_rope import DynamicNTKAlphaRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.dynamic_ntk_scaling_rope import DynamicNTKScalingRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.ntk_scaling_rope import NTKScalingRotaryEmbedding

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.ladders.choice import parse
from ropeswitch.factors.ladders.choose import choose
from tests.factors.ladders import configs


@pytest.fixture
def default_vllm_config() -> Iterator[None]:
    """A current config, without which vLLM builds none of its layers."""
    with set_current_vllm_config(VllmConfig()):
        yield


THETA, DIM = 1e6, 64
UNSCALED = THETA ** -(torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)


def frequencies(factor_set: FactorSet) -> torch.Tensor:
    return UNSCALED / torch.tensor(factor_set.factors, dtype=torch.float64)


def upstream(longest: int, seq_len: int | None = None, **scaling: Any) -> tuple[torch.Tensor, float]:
    """Frequencies and attention scale of transformers."""
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=8, head_dim=DIM, max_position_embeddings=longest,
        rope_parameters={"rope_theta": THETA, **scaling},
    )  # fmt: skip
    found, scale = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len)
    return found.double(), scale


YARNS: list[dict[str, Any]] = [
    {},
    {"beta_fast": 16.0, "beta_slow": 2.0},
    {"truncate": False},
    {"attention_factor": 1.25},
    {"mscale": 1.0, "mscale_all_dim": 0.707},
    {"mscale": 0.707},
]


@pytest.mark.parametrize("change", YARNS)
@pytest.mark.parametrize("text", ["auto", "none"])
def test_yarn_with_every_parameter(text: str, change: dict[str, Any]) -> None:
    """Each rung is what transformers has with the factor of that length."""
    config = configs.config("qwen3", 32768, **configs.YARN | change)
    for each, origin in zip(*(lambda made: (made.ladder.sets, made.origins))(choose(parse(text), config)), strict=True):
        if each.name == "original":
            assert set(each.factors) == {1.0} and each.scale == 1.0
            continue
        found, scale = upstream(32768, **configs.YARN | change | {"factor": origin.factor})
        torch.testing.assert_close(frequencies(each), found, rtol=1e-5, atol=0)
        assert each.scale == pytest.approx(scale)


def in_block(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The config with scaling and base in one block of that name."""
    plain = {key: value for key, value in config.items() if key not in ("rope_scaling", "rope_theta")}
    return plain | {name: config["rope_scaling"] | {"rope_theta": THETA}}


@pytest.mark.parametrize(
    ("text", "config", "longest"),
    [
        ("auto", configs.LLAMA_31, 131072),
        *(("auto", in_block(configs.LLAMA_31, name), 131072) for name in ("rope_scaling", "rope_parameters")),
        # A step where Llama 3 has a ramp; transformers divides by its width, 0, for pairs on it, of which there are none.
        ("auto", configs.LLAMA_4_SCOUT, 10485760),
        ("auto", configs.DYNAMIC, 4096),
        ("none", configs.LINEAR, 4096),
    ],
)
def test_every_rung_is_transformers_own(text: str, config: dict[str, Any], longest: int) -> None:
    scaling = dict(config.get("rope_scaling") or config["rope_parameters"])
    scaling["rope_type"] = scaling.pop("type", None) or scaling["rope_type"]
    for each in choose(parse(text), config).ladder.sets:
        found, _ = upstream(longest, each.max_length, **scaling)
        torch.testing.assert_close(frequencies(each), found, rtol=1e-5, atol=0)


@pytest.mark.parametrize("mixed_b", [None, 0.75])
def test_ntk_of_vllm(mixed_b: float | None, default_vllm_config: None) -> None:
    scaling = {"rope_type": "ntk", "factor": 4.0} | ({} if mixed_b is None else {"mixed_b": mixed_b})
    (each,) = choose(parse("none"), configs.config("x", 4096, **scaling)).ladder.sets
    module = NTKScalingRotaryEmbedding(DIM, DIM, 4096, THETA, True, 4.0, torch.float32, mixed_b)
    found = module._compute_inv_freq(THETA).double()
    torch.testing.assert_close(frequencies(each), found, rtol=1e-5, atol=0)


def test_dynamic_with_alpha_of_vllm(default_vllm_config: None) -> None:
    made = choose(parse("auto"), configs.config("hunyuan_v1_dense", 4096, rope_type="dynamic", alpha=1000.0))
    (each,) = made.ladder.sets
    module = DynamicNTKAlphaRotaryEmbedding(DIM, DIM, 4096, THETA, True, 1000.0, torch.float32)
    table = module._compute_cos_sin_cache()
    angles = torch.arange(4096, dtype=torch.float64)[:, None] * frequencies(each)
    torch.testing.assert_close(table[:, : DIM // 2].double(), angles.cos(), rtol=0, atol=2e-3)


def test_telechat_has_an_attention_scale_of_its_own_at_each_rung() -> None:
    """``patch_legacy_rope_type`` of vLLM: 0.07 ln s + 1, which it works out for the config's length alone."""
    kind = {"rope_type": "telechat3-yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    made = choose(parse("yarn"), configs.config("telechat3", 4096, **kind) | {"rope_theta": THETA}, 32768)
    assert [each.scale for each in made.ladder.sets] == pytest.approx([1.0, 1.04852, 1.09704, 1.14556], abs=1e-5)
    assert "attention 0.07 ln(factor) + 1" in made.origins[1].source
    given = parse("yarn"), configs.config("telechat3", 4096, **kind, attention_factor=1.5)
    assert choose(*given, 8192).ladder.sets[-1].scale == 1.5


def test_nomic_bert_scales_from_the_length_it_was_trained_with(default_vllm_config: None) -> None:
    config = {"model_type": "nomic_bert", "n_positions": 8192, "max_trained_positions": 2048, "head_dim": DIM}
    config |= {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}, "hidden_size": 512}
    made = choose(parse("auto"), config | {"num_attention_heads": 8}, 8192)
    assert [(each.name, each.max_length) for each in made.ladder.sets] == [
        ("original", 2048), ("4k", 4096), ("8k", 8192),
    ]  # fmt: skip
    theirs = DynamicNTKScalingRotaryEmbedding(DIM, DIM, 8192, 2048, 1000.0, True, 2.0, torch.float32)
    ours = (1000.0 ** -(torch.arange(0, DIM, 2) / DIM)) / torch.tensor(made.ladder.sets[-1].factors)
    torch.testing.assert_close(torch.cat((ours.cos(), ours.sin())), theirs.cos_sin_cache[1], atol=1e-6, rtol=1e-5)
