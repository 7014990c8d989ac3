"""Models of vLLM's Transformers backend: the plain model, then Hugging Face with YaRN for each length."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from tests.exactness import checkpoints, test_bfloat16, test_features, test_ladders
from tests.exactness.auto_cases import AUTO, CHUNKED, PLAIN, WINDOW, check_twice, yarn_sets
from tests.exactness.batches import Start, full_but
from tests.exactness.checkpoints import SHAPE
from tests.exactness.families import LOCAL, SLIDING, trained
from tests.exactness.reference import Reference
from tests.exactness.static_reference import StaticReference

MOE = {"num_experts": 4, "num_experts_per_tok": 2}
# By the name of transformers' classes: what the config has beside the shape that all share, and its rotary parameters.
MODELS: dict[str, dict[str, Any]] = {
    # Models that vLLM has no code of its own for.
    "Olmo": {},
    "Olmo2": {},
    "Starcoder2": {"sliding_window": None},
    "Glm": {"head_dim": 32, "rope": {"partial_rotary_factor": 0.5}},
    "SeedOss": {"head_dim": 32},
    "GPTNeoX": {"num_key_value_heads": 4, "rope": {"partial_rotary_factor": 0.25}},
    "Phi": {"rope": {"partial_rotary_factor": 0.5}},
    "HunYuanDenseV1": {"head_dim": 32},
    "HunYuanMoEV1": {"head_dim": 32, "num_experts": 4, "moe_topk": 2},
    "Arcee": {},
    "Cwm": {"head_dim": 32, "sliding_window": 48},
    "FlexOlmo": MOE,
    "Jais2": {},
    "VaultGemma": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 48},
    "Olmo3": SLIDING | {"rope": {"full_attention": PLAIN, "sliding_attention": LOCAL}},
    "Mellum": SLIDING | MOE | {
        "head_dim": 32, "moe_intermediate_size": 64, "rope": {"full_attention": PLAIN, "sliding_attention": PLAIN},
    },
    # Models that it has, with other layouts of cos and sin, or other bases.
    "Gemma3": SLIDING | {
        "head_dim": 32, "query_pre_attn_scalar": 32, "rope": {"full_attention": PLAIN, "sliding_attention": LOCAL},
    },
    "Cohere": {"logit_scale": 1.0},
    "Qwen3Moe": MOE | {"head_dim": 32, "moe_intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": []},
}  # fmt: skip
SOON = ("Olmo3", "Cohere")


def checkpoint(folder: Path, family: str, seed: int = 5) -> tuple[Path, dict[str, Any]]:
    """A checkpoint with a window of 64 tokens, and its rotary parameters."""
    values = dict(MODELS[family])
    changes = values.pop("rope", {})
    rope = changes.get("full_attention", PLAIN | changes)
    layers = changes if "full_attention" in changes else rope
    config = "Gemma3TextConfig" if family == "Gemma3" else None
    return checkpoints.of_family(folder, family, layers, seed=seed, config=config, **values), rope


@pytest.mark.parametrize("family", full_but(SOON, MODELS))
def test_a_plain_model(start: Start, tmp_path: Path, family: str) -> None:
    folder, rope = checkpoint(tmp_path, family)
    reference = StaticReference.load(folder, yarn_sets(rope))
    check_twice(start(folder, AUTO, model_impl="transformers", **CHUNKED), reference)


@pytest.mark.full
def test_olmo3_as_published(start: Start, tmp_path: Path) -> None:
    """One set of YaRN parameters in the config, which transformers puts on the layers of full attention alone."""
    yarn = {
        "rope_type": "yarn", "factor": 2.0, "attention_factor": 1.2, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": WINDOW,
    }  # fmt: skip
    layers = {"full_attention": PLAIN | yarn, "sliding_attention": PLAIN}
    values = SHAPE | SLIDING | {"max_position_embeddings": 2 * WINDOW}
    config = transformers.Olmo3Config(rope_parameters=layers, **values)
    folder = checkpoints.save(transformers.Olmo3ForCausalLM, config, tmp_path, 5)
    path = folder / "config.json"
    published = json.loads(path.read_text()) | {"rope_scaling": yarn, "rope_theta": PLAIN["rope_theta"]}
    del published["rope_parameters"]
    path.write_text(json.dumps(published))
    check_twice(start(folder, AUTO, **CHUNKED), StaticReference.load(folder, trained(PLAIN | yarn)))


@pytest.mark.full
def test_adapters(start: Start, tmp_path: Path) -> None:
    test_features.test_lora(partial(start, model_impl="transformers"), tmp_path)


@pytest.mark.full
def test_rounded_angles(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    """Hugging Face's code rounds cos and sin to the model's dtype."""
    test_bfloat16.test_bfloat16(partial(start, model_impl="transformers"), phi3, phi3_reference, True)


def test_a_model_that_reads_positions_itself_is_refused(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = LlamaDecoderLayer.forward

    def scaled_by_position(
        self: Any, hidden_states: torch.Tensor, position_ids: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        assert position_ids is not None
        return upstream(self, hidden_states * (1 + position_ids[..., None]), position_ids=position_ids, **kwargs)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", scaled_by_position)
    folder = checkpoints.llama(tmp_path)
    with pytest.raises(UnsupportedError, match=r"scaled_by_position reads positions outside a rotary module"):
        start(folder, AUTO, model_impl="transformers", **CHUNKED)


def test_sets_by_layer_are_refused(start: Start, llama: Path) -> None:
    sets = checkpoints.by_layer(test_ladders.ladder(16))
    with pytest.raises(UnsupportedError, match="vLLM's Transformers backend"):
        start(llama, sets, model_impl="transformers")
