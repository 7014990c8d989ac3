"""Ladders from factor files: many sets, start tokens, and every kind of rotary layer that a ladder goes on."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Glm4Config, Glm4ForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ropeswitch.factors.factor_set import FactorLadder
from tests.exactness import checkpoints
from tests.exactness.batches import Start, check_batch
from tests.exactness.checkpoints import SHAPE, factors
from tests.exactness.reference import Reference


def ladder(pairs: int, lengths: tuple[int, ...] = (32, 64, 96, 512), start_tokens: int = 0) -> FactorLadder:
    """Sets that differ clearly; the third is not monotone and starts below 1, as some published lists do."""
    sets = []
    for index, length in enumerate(lengths):
        values = factors(pairs, 1.0 + 0.1 * index, 1.5 + 3 * index)
        if index == 2:
            values = [0.9, *reversed(values[1:])]
        names = {"name": f"{length}", "max_length": length}
        sets.append(names | {"factors": values, "scale": 1.0 + 0.05 * index, "start_tokens": start_tokens * index})
    return FactorLadder.checked(sets)


def test_four_sets_crossed_twice_by_one_request(start: Start, llama: Path) -> None:
    sets = ladder(16)
    llm = start(llama, sets)
    # The first request goes through sets 32, 64 and 96; others start in each set and at each limit.
    check_batch(llm, Reference.load(llama, sets), [30, 32, 33, 64, 65, 90, 96, 97, 200, 10], max_tokens=40)


@pytest.mark.parametrize("start_tokens", [1, 4, 40])
def test_start_tokens(start: Start, llama: Path, start_tokens: int) -> None:
    sets = ladder(16, start_tokens=start_tokens)
    check_batch(start(llama, sets), Reference.load(llama, sets), [20, 31, 63, 64, 97, 130], max_tokens=12)


FAMILIES: dict[str, tuple[Any, Any, int]] = {
    "mistral-sliding-window": (
        MistralForCausalLM, MistralConfig(max_position_embeddings=64, sliding_window=48, **SHAPE), 16,
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(max_position_embeddings=64, **SHAPE), 16),
    "glm4-partial-interleaved": (
        Glm4ForCausalLM,
        Glm4Config(max_position_embeddings=64, head_dim=32, **SHAPE,
                  rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}),
        8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_families(start: Start, tmp_path: Path, family: str) -> None:
    model, config, pairs = FAMILIES[family]
    folder = checkpoints.save(model, config, tmp_path, seed=3)
    sets = ladder(pairs)
    check_batch(start(folder, sets), Reference.load(folder, sets), [20, 31, 64, 95, 97, 150], max_tokens=12)


def test_llama_with_all_heads(start: Start, tmp_path: Path) -> None:
    folder = checkpoints.llama(tmp_path, num_key_value_heads=4, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32})  # fmt: skip
    sets = ladder(16)
    # The ladder replaces the model's own scaling, so the reference keeps nothing of it but the base.
    check_batch(start(folder, sets), Reference.load(folder, sets), [20, 31, 64, 95, 97, 150], max_tokens=12)


def test_phi3_with_partial_rotary_and_its_own_attention_factor(start: Start, tmp_path: Path) -> None:
    folder = checkpoints.phi3(tmp_path, partial_rotary_factor=0.75, rope={"attention_factor": 1.37})
    check_batch(start(folder), Reference.load(folder), [20, 60, 63, 64, 65, 150], max_tokens=12)


@pytest.mark.full
@pytest.mark.parametrize("family", ["la2", "mis"])
def test_production_shape(start: Start, tmp_path: Path, family: str) -> None:
    """Head size 128, the sets for 8k and 2048k, and prompts that cross from 8192 to 8193 while decoding."""
    shape = {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}
    if family == "la2":
        folder = checkpoints.llama(tmp_path, maximum=4096, **(shape | {"num_key_value_heads": 2}))
    else:
        config = MistralConfig(max_position_embeddings=4096, sliding_window=None, **(SHAPE | shape))
        folder = checkpoints.save(MistralForCausalLM, config, tmp_path, seed=4)
    short = {"name": "8k", "max_length": 8192, "factors": factors(64, 1.02, 2.5)}
    long = {"name": "2048k", "max_length": 2_097_152, "factors": factors(64, 1.0, 480.0)}
    sets = FactorLadder.checked([short, long])
    llm = start(folder, sets, max_model_len=16384, max_num_batched_tokens=4096, max_num_seqs=4,
                kv_cache_memory_bytes=256 << 20)  # fmt: skip
    reference = Reference.load(folder, sets)
    reference.model.set_attn_implementation("sdpa")
    check_batch(llm, reference, [8189, 8192, 8193, 300], max_tokens=6)
