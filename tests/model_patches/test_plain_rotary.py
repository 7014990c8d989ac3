"""Plain rotary modules of a decoder in a multimodal model are replaced; all others stay."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import LinearScalingRotaryEmbedding

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding, replace_plain_rotary

SETTINGS = RopeSettings(FactorLadder.checked([{"name": "one", "max_length": 64, "factors": [1.0] * 8}]), theta=10000.0)


def plain(base: float, neox: bool = True) -> RotaryEmbedding:
    return RotaryEmbedding(32, 16, 64, base, neox, torch.float32)


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        yield


def test_modules_of_the_decoder_are_replaced() -> None:
    shared = plain(10000.0, neox=False)
    scaled = LinearScalingRotaryEmbedding(32, 16, 64, 10000.0, True, 2.0, torch.float32)
    layers = [nn.ModuleDict({"rope": module}) for module in (shared, shared, plain(500.0), scaled)]
    text = nn.ModuleList(layers)
    replace_plain_rotary(text, SETTINGS)
    first, second, local, left = (layer["rope"] for layer in layers)
    assert isinstance(first, LadderRotaryEmbedding) and first is second
    assert (first.head_size, first.rotary_dim, first.is_neox_style) == (32, 16, False)
    assert first.rotation.laddered and not local.rotation.laddered and local.rotation.theta == 500.0
    # StepRows refuses what is left.
    assert left is scaled
