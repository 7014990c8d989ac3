"""The rotation of families whose configs leave out or rename its fields."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import DbrxConfig, DbrxForCausalLM, GPTJConfig, Zamba2Config, Zamba2ForCausalLM

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.ladders.native import native_of
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.model_facts import ModelFacts
from ropeswitch.factors.rules.rope import Rope, rope_from_config
from tests.passkey_tiny import FOLDER

# GPT-J 6B's config, and Zamba2's.
GPTJ, ZAMBA2 = GPTJConfig().to_dict(), Zamba2Config().to_dict()
# GLM-4-9B-Chat's config, as far as its rotation goes.
CHATGLM: dict[str, Any] = {"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32}
CHATGLM |= {"seq_length": 131072, "rope_ratio": 500}
# DBRX's published config, as far as its rotation goes, as transformers returns it.
ATTENTION = {"kv_n_heads": 8, "rope_theta": 500000}
DBRX = DbrxConfig(d_model=6144, n_heads=48, max_seq_len=32768, attn_config=ATTENTION).to_dict()


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        (GPTJ, Rope(64, 10000.0, 2048)),
        (CHATGLM, Rope(64, 5e6, 131072)),
        (DBRX, Rope(128, 500000.0, 32768)),
        (ZAMBA2, Rope(160, 10000.0, 4096)),
    ],
    ids=["gptj", "chatglm", "dbrx", "zamba2"],
)
def test_families(config: dict[str, Any], rope: Rope) -> None:
    native = native_of(config)
    assert (native.rope, native.end) == (rope, rope.original_length)
    assert rope_from_config(config) == rope


def test_bases_as_config_json_states_them() -> None:
    assert rope_parameters({"model_type": "chatglm"})["rope_theta"] == 10000.0
    assert rope_parameters({"model_type": "dbrx", "attn_config": {"rope_theta": 7.0}})["rope_theta"] == 7.0
    # What a config says itself counts before its family's.
    plain = {"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.25}
    assert rope_parameters(GPTJ | {"rope_parameters": plain}) == plain


TINY_DBRX = DbrxConfig(
    d_model=32, n_heads=2, n_layers=1, max_seq_len=64, vocab_size=640,
    attn_config={"kv_n_heads": 1, "rope_theta": 5e5, "clip_qkv": 8},
    ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1},
)  # fmt: skip
TINY_ZAMBA2 = Zamba2Config(
    vocab_size=640, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=64, layers_block_type=["linear_attention", "hybrid"], use_mem_rope=True,
    mamba_ngroups=1, mamba_d_state=8, n_mamba_heads=2, adapter_rank=4,
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "config", "rope"),
    [(DbrxForCausalLM, TINY_DBRX, Rope(16, 5e5, 64)), (Zamba2ForCausalLM, TINY_ZAMBA2, Rope(32, 10000.0, 64))],
    ids=["dbrx", "zamba2"],
)
def test_facts_are_those_of_the_loaded_model(model: Any, config: Any, rope: Rope, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, tmp_path)
    local = LocalModel.of(model(config).eval(), None, config.to_dict(), "tiny")
    assert ModelFacts.load(str(tmp_path)).rope == local.rope == rope


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPTJ | {"rotary_dim": None}, "rotary_dim: None must be a whole number from 1 to 256"),
        (GPTJ | {"n_head": 0}, "n_head: 0 must be"),
        (GPTJ | {"rotary": False}, "rope_theta: missing"),
        (DBRX | {"attn_config": None}, "attn_config: None must be an object"),
        (DBRX | {"d_model": None}, "hidden_size: None must be"),
        (CHATGLM | {"rope_ratio": 0}, "rope_ratio: 0.0 must be"),
    ],
)
def test_wrong_fields_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(FactorError, match=message):
        native_of(config)
