"""Sequence parallel (decode context parallel): two ranks that each hold half of every sequence's keys change no token.

The cases are those of one rank, on models with one KV head. The core tests run them on one engine for each interleave
size, whose cache is so small and whose chunks are so short that every batch is chunked and preempted.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import LLM

from tests.exactness import checkpoints, test_features, test_ladders, test_model_modes, test_modes, test_speculation
from tests.exactness.batches import Start, check_batch
from tests.exactness.conftest import starting
from tests.exactness.engines import greedy, prompts, run, scheduler_of
from tests.exactness.reference import Reference

# A block number means 16 tokens on each of two ranks: the 32 tokens of a block of the other tests.
BLOCK = 16
SPLIT = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2, "block_size": BLOCK}
# 18 blocks: of 16 tokens, with a key and a value of 32 float32 numbers, in 2 layers. One block is vLLM's own.
SMALL = 18 * BLOCK * 2 * 32 * 4 * 2
INTERLEAVES = [1, 16]
VARIABLES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def one_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the cases take besides an engine, on models with one KV head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(checkpoints.SHAPE, "num_key_value_heads", 1)
        phi3 = checkpoints.phi3(tmp_path_factory.mktemp("phi3"), maximum=1024)
        llama = checkpoints.llama(tmp_path_factory.mktemp("llama"))
        yield {"phi3": phi3, "phi3_reference": Reference.load(phi3), "llama": llama}


@pytest.fixture(scope="module", params=[1, pytest.param(16, marks=pytest.mark.full)])
def split(request: pytest.FixtureRequest, one_head: dict[str, Any]) -> Iterator[LLM]:
    """One engine for all core tests of an interleave size; ``max_model_len`` is as long as its cache allows."""
    for start in starting(**VARIABLES):
        yield start(
            one_head["phi3"], **SPLIT, cp_kv_cache_interleave_size=request.param, kv_cache_memory_bytes=SMALL,
            max_num_batched_tokens=48, max_model_len=-1,
        )  # fmt: skip


def run_case(case: Callable[..., None], available: dict[str, Any]) -> None:
    case(**{name: available[name] for name in inspect.signature(case).parameters})


ON_ONE_ENGINE = [
    *test_model_modes.CACHE, *test_model_modes.STREAMED, test_modes.test_eager_mixed_batch_leaks_no_block,
    test_modes.test_preemption, test_modes.test_prompt_log_probabilities, test_modes.test_forced_sets,
]  # fmt: skip


@pytest.mark.parametrize("case", ON_ONE_ENGINE, ids=lambda case: case.__name__)
def test_case_of_one_rank(split: LLM, one_head: dict[str, Any], case: Callable[..., None]) -> None:
    run_case(case, one_head | {"start": lambda *_, **__: split})


def held(worker: Any, blocks: list[int]) -> tuple[list[int], torch.Tensor]:
    """On one rank: the shape of layer 0's cache, and what its blocks hold, ``[KV heads, tokens, 2 * head_size]``."""
    cache = worker.model_runner.kv_caches[0]
    return list(cache.shape), cache[blocks].movedim(1, 0).flatten(1, 2).clone()


def test_each_rank_holds_half_of_the_keys(split: LLM, one_head: dict[str, Any]) -> None:
    """Block numbers at the scheduler, and on each rank every second run of Hugging Face's own rotated keys and values."""
    core, scheduler = split.llm_engine, scheduler_of(split)
    interleave = core.vllm_config.parallel_config.cp_kv_cache_interleave_size
    (prompt,) = prompts([150], seed=31)
    core.add_request("half", {"prompt_token_ids": prompt}, greedy(8))
    while not scheduler.running or scheduler.running[0].num_output_tokens < 3:
        core.step()
    (request,) = scheduler.running
    # The last token is sampled, and its key not made yet.
    tokens = list(request.all_token_ids)[: request.num_computed_tokens]
    (blocks,) = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    assert len(tokens) >= 152 and len(blocks) == -(-len(tokens) // (2 * BLOCK)) == 5
    with torch.no_grad():
        layer = one_head["phi3_reference"].model(torch.tensor([tokens]), use_cache=True).past_key_values.layers[0]
    expected = torch.cat((layer.keys, layer.values), dim=-1)[0]
    for rank, (shape, found) in enumerate(split.collective_rpc(held, args=(blocks,))):
        assert shape == [core.vllm_config.cache_config.num_gpu_blocks, 1, BLOCK, 64] == [18, 1, 16, 64]
        own = [place for place in range(len(tokens)) if place // interleave % 2 == rank]
        assert 0.4 * len(tokens) < len(own) < 0.6 * len(tokens)
        torch.testing.assert_close(found[:, : len(own)], expected[:, own], atol=1e-4, rtol=1e-4)
        if len(own) < found.shape[1]:
            assert not torch.allclose(found[:, len(own)], expected[:, -1], atol=1e-2)
    core.abort_request(["half"])
    core.step()


def test_two_ranks_hold_twice_the_context_of_one(split: LLM, one_head: dict[str, Any]) -> None:
    """With the same memory on each rank; and a request of that length is answered right."""
    for start in starting(VLLM_ENABLE_V1_MULTIPROCESSING="0"):
        one = start(one_head["phi3"], block_size=2 * BLOCK, kv_cache_memory_bytes=SMALL, max_model_len=-1)
        lengths = [llm.llm_engine.vllm_config.model_config.max_model_len for llm in (one, split)]
        tokens = [
            llm.llm_engine.vllm_config.cache_config.num_gpu_blocks * scheduler_of(llm).block_size
            for llm in (one, split)
        ]
    assert tokens[1] >= 1.9 * tokens[0] and lengths[1] >= 1.9 * lengths[0], (tokens, lengths)
    (prompt,) = prompts([lengths[1] - 8], seed=32)
    one_head["phi3_reference"].check(prompt, *run(split, [prompt], greedy(8))[0])


@pytest.fixture
def start_split() -> Iterator[Start]:
    """Starts engines of two ranks, with as many tokens of memory as the cases ask for."""
    for start in starting(**VARIABLES):
        yield partial(start_with_split, start)


def start_with_split(start: Start, *args: Any, **changes: Any) -> LLM:
    # A rank has half the heads' keys of half the tokens of a case's own engine.
    if "kv_cache_memory_bytes" in changes:
        changes["kv_cache_memory_bytes"] //= 4
    return start(*args, **(SPLIT | changes))


WHOLE: list[tuple[Callable[..., None], dict[str, Any]]] = [
    (test_modes.test_compiled, {}),
    (test_modes.test_prefix_caching_off, {}),
    (test_modes.test_several_choices, {}),
    (test_modes.test_priority_scheduling, {}),
    (test_modes.test_long_positions, {"angles": "exact"}),
    (test_modes.test_long_positions, {"angles": "hf"}),
    (test_ladders.test_four_sets_crossed_twice_by_one_request, {}),
    (test_ladders.test_start_tokens, {"start_tokens": 4}),
    (test_ladders.test_families, {"family": "qwen2"}),
    (test_ladders.test_families, {"family": "glm4-partial-interleaved"}),
    (test_ladders.test_phi3_with_partial_rotary_and_its_own_attention_factor, {}),
    (test_ladders.test_production_shape, {"family": "mis"}),
    (test_features.test_structured_output_spans_the_switch, {}),
    (test_features.test_lora, {}),
]


@pytest.mark.full
@pytest.mark.parametrize(("case", "arguments"), WHOLE, ids=[f"{case.__name__}-{values}" for case, values in WHOLE])
def test_case_of_one_rank_with_its_own_engine(
    start_split: Start, one_head: dict[str, Any], tmp_path: Path, case: Callable[..., None], arguments: dict[str, Any]
) -> None:
    run_case(case, one_head | arguments | {"start": start_split, "tmp_path": tmp_path})


# Tensor, context and pipeline parallel ranks, KV heads, and an interleave size.
LAYOUTS = {
    # Each KV head on two ranks, which share its sequences between them.
    "tp4-dcp2-kv2": (4, 2, 1, 2, 1),
    # A whole sequence on each half of the ranks.
    "tp4-dcp2-kv1": (4, 2, 1, 1, 16),
    "tp4-dcp4": (4, 4, 1, 1, 16),
    "tp2-dcp2-pp2": (2, 2, 2, 1, 1),
}


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_ranks(start_processes: Start, tmp_path: Path, layout: str) -> None:
    tensor, context, pipeline, heads, interleave = LAYOUTS[layout]
    folder = checkpoints.phi3(tmp_path, num_attention_heads=8, hidden_size=256, num_key_value_heads=heads)
    llm = start_processes(
        folder, tensor_parallel_size=tensor, decode_context_parallel_size=context, pipeline_parallel_size=pipeline,
        block_size=BLOCK, cp_kv_cache_interleave_size=interleave, max_num_batched_tokens=96,
    )  # fmt: skip
    reference = Reference.load(folder)
    check_batch(llm, reference)
    check_batch(llm, reference)


@pytest.mark.full
@pytest.mark.parametrize("interleave", INTERLEAVES)
def test_ngram_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interleave: int) -> None:
    """Drafts are many new tokens over keys on both ranks; accepted ones on both sides of the limit change no token."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    folder = checkpoints.phi3(tmp_path, vocab_size=16, num_key_value_heads=1)
    test_speculation.check_drafts(folder, **SPLIT | {"cp_kv_cache_interleave_size": interleave})
