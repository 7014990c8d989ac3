"""Facts from configs: families that name the fields of their rotation differently rotate as the loaded model does."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import (
    DbrxConfig,
    DbrxForCausalLM,
    GPTJConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Zamba2Config,
    Zamba2ForCausalLM,
)

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.model_facts import ModelFacts
from ropeswitch.factors.rules.rope import Rope
from tests.passkey_tiny import FOLDER

GPTJ = GPTJConfig(n_embd=32, n_head=2, n_layer=1, n_positions=64, rotary_dim=8, vocab_size=640)
DBRX = DbrxConfig(
    d_model=32, n_heads=2, n_layers=1, max_seq_len=64, vocab_size=640,
    attn_config={"kv_n_heads": 1, "rope_theta": 5e5, "clip_qkv": 8},
    ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1},
)  # fmt: skip
ZAMBA2 = Zamba2Config(
    vocab_size=640, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=64, layers_block_type=["linear_attention", "hybrid"], use_mem_rope=True,
    mamba_ngroups=1, mamba_d_state=8, n_mamba_heads=2, adapter_rank=4,
)  # fmt: skip


def facts_of(config: PreTrainedConfig, folder: Path) -> ModelFacts:
    config.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, folder)
    return ModelFacts.load(str(folder))


@pytest.mark.parametrize(
    ("model", "config", "rope"),
    [(DbrxForCausalLM, DBRX, Rope(16, 5e5, 64)), (Zamba2ForCausalLM, ZAMBA2, Rope(32, 10000.0, 64))],
    ids=["dbrx", "zamba2"],
)
def test_facts_are_those_of_the_loaded_model(
    model: Callable[[PreTrainedConfig], PreTrainedModel], config: PreTrainedConfig, rope: Rope, tmp_path: Path
) -> None:
    local = LocalModel.of(model(config).eval(), None, config.to_dict(), "tiny")
    assert facts_of(config, tmp_path).rope == local.rope == rope


def test_a_wrong_field_is_named_with_its_model(tmp_path: Path) -> None:
    config = GPTJConfig(n_embd=32, n_head=2, n_layer=1, n_positions=64, rotary_dim=80)
    with pytest.raises(FactorError, match=f"^model '{tmp_path}': rotary_dim: 80 must be"):
        facts_of(config, tmp_path)
