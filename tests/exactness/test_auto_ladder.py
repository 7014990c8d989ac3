"""The automatic ladder on plain models of every family: the plain model, then Hugging Face with YaRN for each length."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.exactness import checkpoints
from tests.exactness.auto_cases import AUTO, CHUNKED, PLAIN, WINDOW, check_twice, yarn_sets
from tests.exactness.batches import Start, full_but
from tests.exactness.engines import prompts
from tests.exactness.static_reference import StaticReference

# By the name of transformers' classes: what the config has beside the shape that all share, and its rotary parameters.
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 64},
    "Mistral": {"sliding_window": 48},
    "Gemma2": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 48},
    "Phi3": {"original_max_position_embeddings": WINDOW},
    "Glm4": {"head_dim": 32, "rope": {"partial_rotary_factor": 0.5}},
    "Cohere": {"logit_scale": 1.0},
    "Granite": {
        "attention_multiplier": 0.15, "embedding_multiplier": 1.5, "residual_multiplier": 0.8, "logits_scaling": 1.2,
    },
    "Exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
}  # fmt: skip
# The same classes with other layers: a config that says nothing of the window, and global layers without rotation.
MORE = {
    "Phi3-default-window": {},
    "Mistral-full-attention": {"sliding_window": None},
    "Exaone4-hybrid": {"sliding_window": 48, "layer_types": ["sliding_attention", "full_attention"]},
}

# One of each kind of rotation and of layers.
CORE = ("Llama", "Qwen3", "Gemma2", "Phi3", "Cohere")


def checkpoint(folder: Path, family: str, *, seed: int = 5, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A checkpoint with a window of 64 tokens, and its rotary parameters; ``changes`` go into the config."""
    values = (MODELS | MORE)[family] | changes
    rope = PLAIN | values.pop("rope", {})
    return checkpoints.of_family(folder, family.partition("-")[0], rope, seed=seed, **values), rope


@pytest.mark.parametrize("family", full_but(CORE, MODELS | MORE))
def test_a_plain_model(start: Start, tmp_path: Path, family: str) -> None:
    folder, rope = checkpoint(tmp_path, family)
    reference = StaticReference.load(folder, yarn_sets(rope))
    check_twice(start(folder, AUTO, **CHUNKED), reference)


@pytest.mark.parametrize("family", MODELS)
def test_one_forward_for_each_set(tmp_path: Path, family: str) -> None:
    """The reference's rows are those of computing every sequence from scratch."""
    folder, rope = checkpoint(tmp_path, family)
    reference = StaticReference.load(folder, yarn_sets(rope))
    (tokens,) = prompts([140])
    rows = list(reference.rows(tokens[:60], tokens[60:]))
    for length in (60, 64, 65, 100, 128, 129):
        torch.testing.assert_close(rows[length - 60], reference.log_probs(tokens[:length])[-1], rtol=0, atol=1e-4)
