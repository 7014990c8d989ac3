"""The rotation of families whose configs leave out or rename its fields."""

from typing import Any

import pytest
from transformers import DbrxConfig, GPTJConfig, Zamba2Config

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.ladders.native import native_of
from ropeswitch.factors.rules.rope import rope_from_config

# GPT-J 6B's config.
GPTJ = GPTJConfig().to_dict()
# GLM-4-9B-Chat's config, as far as its rotation goes.
CHATGLM = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "seq_length": 131072,
    "rope_ratio": 500,
}
# DBRX's published config, as far as its rotation goes, as transformers returns it.
DBRX = DbrxConfig(
    d_model=6144, n_heads=48, max_seq_len=32768, attn_config={"kv_n_heads": 8, "rope_theta": 500000}
).to_dict()  # fmt: skip
ZAMBA2 = Zamba2Config().to_dict()


def test_gptj() -> None:
    native = native_of(GPTJ)
    assert (native.rope.rotary_dim, native.rope.theta, native.end) == (64, 10000.0, 2048)
    assert rope_from_config(GPTJ) == native.rope


def test_chatglm() -> None:
    native = native_of(CHATGLM)
    assert (native.rope.rotary_dim, native.rope.theta, native.end) == (64, 5e6, 131072)
    assert rope_from_config(CHATGLM) == native.rope
    assert rope_parameters({"model_type": "chatglm"})["rope_theta"] == 10000.0


def test_dbrx() -> None:
    native = native_of(DBRX)
    assert (native.rope.rotary_dim, native.rope.theta, native.end) == (128, 500000.0, 32768)
    assert rope_from_config(DBRX) == native.rope
    # As in config.json itself, and with what transformers fills in.
    assert rope_parameters({"model_type": "dbrx", "attn_config": {"rope_theta": 7.0}})["rope_theta"] == 7.0
    assert DBRX["rope_parameters"]["rope_theta"] == 10000.0


def test_zamba2() -> None:
    native = native_of(ZAMBA2)
    assert (native.rope.rotary_dim, native.rope.theta, native.end) == (160, 10000.0, 4096)


def test_what_a_config_says_itself_counts() -> None:
    plain = {"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.25}
    assert rope_parameters(GPTJ | {"rope_parameters": plain}) == plain


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPTJ | {"rotary_dim": None}, "rotary_dim: None must be a whole number from 1 to 256"),
        (GPTJ | {"rotary_dim": 500}, "rotary_dim: 500 must be"),
        (GPTJ | {"n_head": 0}, "n_head: 0 must be"),
        (GPTJ | {"rotary": False}, "rope_theta: missing"),
        (DBRX | {"attn_config": None}, "attn_config: None must be an object"),
        (DBRX | {"attn_config": {}}, "rope_theta: missing"),
        (DBRX | {"d_model": None}, "hidden_size: None must be"),
        (CHATGLM | {"rope_ratio": 0}, "rope_ratio: 0.0 must be"),
        (CHATGLM | {"rope_ratio": "2"}, "rope_ratio: '2' must be"),
    ],
)
def test_wrong_fields_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(FactorError, match=message):
        native_of(config)
