"""Exactness with several ranks, each a process of its own: tensor, pipeline and data parallel."""

import asyncio
from pathlib import Path

import pytest
from vllm import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.parts import PARTS
from ropeswitch.model_patches.switch.set_keys import ladder_digest
from tests.exactness.auto_cases import LONGEST, check_twice
from tests.exactness.batches import LENGTHS, Start, check_batch
from tests.exactness.engines import ENGINE, first_choice, greedy, prompts
from tests.exactness.families import FAMILIES
from tests.exactness.preloaded import COLLECTIVES, preloaded
from tests.exactness.reference import Reference


@pytest.mark.full
@pytest.mark.parametrize("ranks", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tp2", "pp2"])
def test_two_ranks(
    start_processes: Start,
    phi3: Path,
    phi3_reference: Reference,
    ranks: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(COLLECTIVES, "vLLM's")
    llm = start_processes(phi3, **ranks, max_num_batched_tokens=96)
    settings = settings_of(llm.llm_engine.vllm_config)
    assert settings is not None
    assert sorted(llm.collective_rpc("ladder_report")) == [[rank, ladder_digest(settings)] for rank in range(2)]
    check_batch(llm, phi3_reference)
    check_batch(llm, phi3_reference)


@pytest.mark.full
def test_a_pipeline_stage_of_local_layers(start_processes: Start, tmp_path: Path) -> None:
    """Its layers rotate as trained; the ladder rotates those of the other stage."""
    family = FAMILIES["gemma3"]
    folder = family.save(tmp_path)
    llm = start_processes(
        folder, family.key, max_model_len=LONGEST, pipeline_parallel_size=2, max_num_batched_tokens=96
    )
    check_twice(llm, family.reference(folder, family.sets))


@pytest.mark.full
def test_two_replicas(phi3: Path, phi3_reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    # vLLM 0.33 wants a NUMA node for each replica on CPUs.
    monkeypatch.setenv("VLLM_CPU_SIM_MULTI_NUMA", "1")
    with preloaded():
        asyncio.run(replicas(phi3, phi3_reference))


async def replicas(folder: Path, reference: Reference) -> None:
    key = {"ladder": "auto", "parts": list(PARTS)}
    args = AsyncEngineArgs(**(ENGINE | {"model": str(folder)}), data_parallel_size=2, additional_config={KEY: key})
    engine = AsyncLLM.from_engine_args(args)
    try:

        async def one(index: int, tokens: list[int]) -> None:
            final = None
            async for output in engine.generate({"prompt_token_ids": tokens}, greedy(24), str(index)):
                final = output
            assert final is not None
            reference.check(tokens, *first_choice(final.outputs[0]))

        await asyncio.gather(*(one(i, tokens) for i, tokens in enumerate(prompts(LENGTHS))))
    finally:
        engine.shutdown()
