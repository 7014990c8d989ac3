"""Ladders from factor files: many sets, start tokens, and every kind of rotary layer that a ladder goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ropeswitch.factors.factor_set import FactorLadder
from tests.exactness import checkpoints
from tests.exactness.auto_cases import PLAIN
from tests.exactness.batches import Start, check_batch
from tests.exactness.checkpoints import factors
from tests.exactness.engines import prompts
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


@pytest.mark.parametrize("forced", [None, "64"])
def test_one_forward_for_each_set(phi3: Path, llama: Path, forced: str | None) -> None:
    """The reference's rows are those of computing every sequence from scratch."""
    (tokens,) = prompts([140])
    for reference in (Reference.load(phi3), Reference.load(llama, ladder(16), forced)):
        rows = list(reference.rows(tokens[:30], tokens[30:]))
        for length in (30, 31, 32, 33, 64, 65, 96, 97, 139):
            torch.testing.assert_close(rows[length - 30], reference.log_probs(tokens[:length])[-1], rtol=0, atol=1e-4)


def test_four_sets_crossed_twice_by_one_request(start: Start, llama: Path) -> None:
    sets = ladder(16)
    llm = start(llama, sets)
    # The first request goes through sets 32, 64 and 96; others start in each set and at each limit.
    check_batch(llm, Reference.load(llama, sets), [30, 32, 33, 64, 65, 90, 96, 97, 200, 10], max_tokens=40)


@pytest.mark.parametrize("start_tokens", [1, 4, 40])
def test_start_tokens(start: Start, llama: Path, start_tokens: int) -> None:
    sets = ladder(16, start_tokens=start_tokens)
    check_batch(start(llama, sets), Reference.load(llama, sets), [20, 31, 63, 64, 97, 130], max_tokens=12)


@pytest.mark.parametrize("eager", [True, pytest.param(False, marks=pytest.mark.full, id="compiled")])
def test_sets_by_layer(start: Start, llama: Path, eager: bool) -> None:
    """Crossed from a set without layers into one with layers and on, chunked, with a cold and a warm prefix cache."""
    sets = checkpoints.by_layer(ladder(16, start_tokens=3))
    llm = start(llama, sets, enforce_eager=eager, enable_prefix_caching=True, max_num_batched_tokens=48)
    for _ in range(2):
        check_batch(llm, Reference.load(llama, sets), [30, 32, 33, 64, 65, 90, 96, 97, 200, 10], max_tokens=40)


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
# By a name: transformers' classes, what the config has beside the shape and plain rotation, and the rotated pairs.
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "mistral-sliding-window": ("Mistral", {"sliding_window": 48}, {}, 16),
    "qwen2": ("Qwen2", {}, {}, 16),
    "glm4-partial-interleaved": ("Glm4", {"head_dim": 32}, {"partial_rotary_factor": 0.5}, 8),
    # The ladder replaces the model's own scaling, so the reference keeps nothing of it but the base.
    "llama3-all-heads": ("Llama", {"num_key_value_heads": 4}, LLAMA3, 16),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families(start: Start, tmp_path: Path, family: str) -> None:
    model, values, rope, pairs = FAMILIES[family]
    folder = checkpoints.of_family(tmp_path, model, PLAIN | rope, seed=3, **values)
    sets = ladder(pairs)
    check_batch(start(folder, sets), Reference.load(folder, sets), [20, 31, 64, 95, 97, 150], max_tokens=12)


def test_phi3_with_partial_rotary_and_its_own_attention_factor(start: Start, tmp_path: Path) -> None:
    folder = checkpoints.phi3(tmp_path, partial_rotary_factor=0.75, rope={"attention_factor": 1.37})
    check_batch(start(folder), Reference.load(folder), [20, 60, 63, 64, 65, 150], max_tokens=12)


@pytest.mark.full
@pytest.mark.parametrize("family", ["la2", "mis"])
def test_production_shape(start: Start, tmp_path: Path, family: str) -> None:
    """Head size 128, the sets for 8k and 2048k, and prompts that cross from 8192 to 8193 while decoding."""
    shape: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}
    if family == "la2":
        folder = checkpoints.llama(tmp_path, maximum=4096, **(shape | {"num_key_value_heads": 2}))
    else:
        shape |= {"max_position_embeddings": 4096, "sliding_window": None}
        folder = checkpoints.of_family(tmp_path, "Mistral", PLAIN, seed=4, **shape)
    short = {"name": "8k", "max_length": 8192, "factors": factors(64, 1.02, 2.5)}
    long = {"name": "2048k", "max_length": 2_097_152, "factors": factors(64, 1.0, 480.0)}
    sets = FactorLadder.checked([short, long])
    llm = start(folder, sets, max_model_len=16384, max_num_batched_tokens=4096, max_num_seqs=4,
                kv_cache_memory_bytes=256 << 20)  # fmt: skip
    reference = Reference.load(folder, sets)
    reference.model.set_attn_implementation("sdpa")
    check_batch(llm, reference, [8189, 8192, 8193, 300], max_tokens=6)
