"""Rotary modules of transformers are replaced by ones that return what those would, of the rows' angles."""

import importlib
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.rows.rotation import Rotation
from ropeswitch.model_patches.switch.rows.transformers_rotary import RowsRotaryEmbedding, replace_rotary

THETA, LOCAL, HEAD, WINDOW = 5000.0, 100.0, 32, 64
PLAIN = {"rope_type": "default", "rope_theta": THETA}
# Where each row's token is in its sequence.
POSITIONS = torch.tensor([[5, 0, 63, 17, 40, 41]])


def model_of(family: str, **rope: Any) -> nn.Module:
    """A model with a family's rotary module for heads of 32 values, and its config."""
    values: dict[str, Any] = {
        "rope_parameters": rope if "full_attention" in rope else PLAIN | rope,
        "hidden_size": 2 * HEAD, "num_attention_heads": 2, "head_dim": HEAD, "max_position_embeddings": WINDOW,
        "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0,
    }  # fmt: skip
    model = nn.Module()
    config_name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    model.config = getattr(transformers, config_name)(**values)
    modeling = importlib.import_module(type(model.config).__module__.replace("configuration", "modeling"))
    model.rotary_emb = getattr(modeling, f"{family}RotaryEmbedding")(model.config)
    return model


def rows(rotation: Rotation) -> torch.Tensor:
    pairs = rotation.rotary_dim // 2
    angles = POSITIONS[0, :, None] * rotation.theta ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def replace(model: nn.Module, rotary_dim: int = HEAD, theta: float = THETA) -> list[Rotation]:
    """Replace a model's rotary modules under a ladder; returns the rotations whose rows they got."""
    ladder = FactorLadder.checked([{"name": "all", "max_length": WINDOW, "factors": [1.0] * (rotary_dim // 2)}])
    asked: list[Rotation] = []

    def rows_of(rotation: Rotation) -> torch.Tensor:
        asked.append(rotation)
        return rows(rotation)

    replace_rotary(model, model.config, RopeSettings(ladder, theta), rows_of)
    return asked


def check(upstream: nn.Module, ours: nn.Module, dtype: torch.dtype = torch.float32, **layer_type: str) -> None:
    x = torch.zeros(1, POSITIONS.shape[1], 1, dtype=dtype)
    numbers = torch.arange(POSITIONS.shape[1]).flip(0)
    pairs = zip(ours(x, numbers[None], **layer_type), upstream(x, POSITIONS[:, numbers], **layer_type), strict=True)
    for found, expected in pairs:
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 if found.dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("family", "layout", "rope"),
    [
        ("Llama", "repeated", {}),
        ("Olmo", "repeated", {}),
        ("Glm", "repeated", {"partial_rotary_factor": 0.5}),
        ("Cohere", "interleaved", {}),
        ("GptOss", "once", {}),
    ],
)
def test_layouts_and_dtypes(family: str, layout: str, rope: dict[str, Any], dtype: torch.dtype) -> None:
    model = model_of(family, **rope)
    upstream, rotary_dim = model.rotary_emb, int(HEAD * rope.get("partial_rotary_factor", 1))
    assert replace(model, rotary_dim) == [Rotation(THETA, rotary_dim)]
    assert isinstance(model.rotary_emb, RowsRotaryEmbedding) and model.rotary_emb.layout == layout
    check(upstream, model.rotary_emb, dtype)


@pytest.mark.parametrize("family", ["Olmo3", "Mellum", "Gemma3"])
def test_each_type_of_layer_has_its_own_base(family: str) -> None:
    local = PLAIN | {"rope_theta": LOCAL, "ropeswitch": "trained"}
    model = model_of(family, full_attention=PLAIN | {"ropeswitch": "ladder"}, sliding_attention=local)
    upstream = model.rotary_emb
    full_rows = Rotation(THETA, HEAD, marked=True)
    local_rows = Rotation(LOCAL, HEAD, laddered=False, marked=True)
    assert set(replace(model)) == {full_rows, local_rows}
    for layer_type in ("full_attention", "sliding_attention"):
        check(upstream, model.rotary_emb, layer_type=layer_type)


def test_layers_share_their_module() -> None:
    model = model_of("Llama")
    model.layer = nn.ModuleDict({"rotary_emb": model.rotary_emb})
    replace(model)
    assert isinstance(model.rotary_emb, RowsRotaryEmbedding) and model.layer["rotary_emb"] is model.rotary_emb


@pytest.mark.parametrize(
    ("theta", "rope"),
    [
        (10000.0, {}),
        (THETA, {"rope_type": "linear", "factor": 2.0}),
        (THETA, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    ],
    ids=["another base", "scaled", "scaled with attention"],
)
def test_a_module_that_does_not_rotate_as_its_config_says_is_refused(theta: float, rope: dict[str, Any]) -> None:
    model = model_of("Llama", **rope)
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": theta}
    with pytest.raises(UnsupportedError, match=rf"LlamaRotaryEmbedding.* rope_theta {theta:g}"):
        replace(model, theta=theta)


def test_other_factors_than_the_model_has_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"8 factors, .* 32 values per head"):
        replace(model_of("Llama"), HEAD // 2)


def test_a_module_for_one_type_of_layer_is_refused_where_there_are_several() -> None:
    model = model_of("Llama")
    model.config.rope_parameters = {"full_attention": PLAIN, "sliding_attention": PLAIN}
    with pytest.raises(UnsupportedError, match="is not called for a type of layer, but rope_parameters has several"):
        replace(model)
