"""Models with several bases, M-RoPE, position-scaled attention or recurrent layers equal Hugging Face with static YaRN."""

import json
import pkgutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import GlmConfig, GlmForCausalLM, HrmTextConfig, HrmTextForCausalLM

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.rows.position_readers import METHODS
from tests.exactness import checkpoints
from tests.exactness.auto_cases import AUTO, CHUNKED, WINDOW, check_twice, yarn_sets
from tests.exactness.batches import Start, full_but
from tests.exactness.checkpoints import SHAPE, save
from tests.exactness.families import FAMILIES
from tests.exactness.reference import load_model
from tests.exactness.static_reference import StaticReference

# One of each mechanism; the others are among the long tests.
SOON = ("gemma3", "llama4", "lfm2", "gptj")


@pytest.mark.parametrize("name", full_but(SOON, FAMILIES))
def test_a_family(start: Start, tmp_path: Path, name: str) -> None:
    each = FAMILIES[name]
    folder = each.save(tmp_path)
    check_twice(start(folder, each.key, **CHUNKED, **each.engine), each.reference(folder, each.sets))


@pytest.mark.parametrize(("name", "reader"), list(zip(("llama4", "ministral3"), METHODS, strict=True)))
def test_a_layer_that_reads_positions_is_found(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reader: str
) -> None:
    """With upstream's own method, which would scale by row numbers; before weights are read, since there are none."""
    each, owner, method = FAMILIES[name], pkgutil.resolve_name(reader), METHODS[reader]
    folder = each.save(tmp_path)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    upstream = getattr(owner, method)
    monkeypatch.setattr(owner, method, getattr(upstream, "__wrapped__", upstream))
    monkeypatch.setattr("ropeswitch.model_patches.switch.rows.position_readers.METHODS", {})
    with pytest.raises(UnsupportedError, match=f"{owner.__name__}.{method} reads positions outside a rotary module"):
        start(folder, each.key, **CHUNKED, **each.engine)


def test_prompts_that_attend_both_ways_are_refused(start: Start, tmp_path: Path) -> None:
    """A switch makes generated tokens a part of the prompt."""
    shape = SHAPE | {"max_position_embeddings": 64, "num_key_value_heads": 4, "head_dim": 32}
    config = HrmTextConfig(**shape, num_layers_per_stack=1, H_cycles=1, L_cycles=1)
    folder = save(HrmTextForCausalLM, config, tmp_path, 0)
    with pytest.raises(UnsupportedError, match="PrefillPrefixLMAttention attends to prompts both ways"):
        start(folder, {"ladder": "auto"}, max_model_len=128)


def chatglm(folder: Path, glm: Path, ratio: float | None) -> Path:
    """The ChatGLM of which transformers' GLM is a port: the same weights under its names, and its config."""
    weights = load_model(glm).state_dict()
    named = {
        "transformer.embedding.word_embeddings.weight": weights["model.embed_tokens.weight"],
        "transformer.encoder.final_layernorm.weight": weights["model.norm.weight"],
        "transformer.output_layer.weight": weights["lm_head.weight"],
    }
    for i in range(SHAPE["num_hidden_layers"]):
        old, new = f"model.layers.{i}", f"transformer.encoder.layers.{i}"
        for kind in ("weight", "bias"):
            parts = [weights[f"{old}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
            named[f"{new}.self_attention.query_key_value.{kind}"] = torch.cat(parts)
        named[f"{new}.self_attention.dense.weight"] = weights[f"{old}.self_attn.o_proj.weight"]
        named[f"{new}.mlp.dense_h_to_4h.weight"] = weights[f"{old}.mlp.gate_up_proj.weight"]
        named[f"{new}.mlp.dense_4h_to_h.weight"] = weights[f"{old}.mlp.down_proj.weight"]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            named[f"{new}.{norm}.weight"] = weights[f"{old}.{norm}.weight"]
    folder.mkdir()
    save_file({name: weight.contiguous() for name, weight in named.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["ChatGLMModel"], "model_type": "chatglm", "torch_dtype": "float32", "num_layers": 2,
        "padded_vocab_size": SHAPE["vocab_size"], "hidden_size": 128, "ffn_hidden_size": SHAPE["intermediate_size"],
        "kv_channels": 32, "num_attention_heads": 4, "seq_length": WINDOW, "layernorm_epsilon": GlmConfig().rms_norm_eps,
        "rmsnorm": True, "post_layer_norm": True, "add_bias_linear": False, "add_qkv_bias": True, "original_rope": True,
        "multi_query_attention": True, "multi_query_group_num": 2, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config if ratio is None else config | {"rope_ratio": ratio}))
    return folder


@pytest.mark.parametrize("ratio", [None, pytest.param(50, marks=pytest.mark.full)])
def test_chatglm(start: Start, tmp_path: Path, ratio: float | None) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0 * (ratio or 1), "partial_rotary_factor": 0.5}
    config = GlmConfig(rope_parameters=rope, max_position_embeddings=WINDOW, head_dim=32, **SHAPE)
    glm = checkpoints.save(GlmForCausalLM, config, tmp_path / "glm", 5)
    folder = chatglm(tmp_path / "chatglm", glm, ratio)
    check_twice(start(folder, AUTO, **CHUNKED), StaticReference.load(glm, yarn_sets(rope)))
