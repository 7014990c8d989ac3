"""Cases for one runner and scheduler, chosen by the environment; ``test_runners.py`` runs them in processes of their own."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.rows.rotary import rotate_by_row
from tests.exactness import checkpoints
from tests.exactness.acceptance import watch
from tests.exactness.batches import Start, check, check_batch
from tests.exactness.engines import greedy, prompts, scheduler_of, worker_of
from tests.exactness.reference import Reference

V2, ASYNC = os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1", os.environ["ROPESWITCH_TEST_ASYNC"] == "1"


def test_the_engine_is_the_one_that_was_asked_for(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    llm = start(phi3)
    assert isinstance(worker_of(llm).model_runner, GPUModelRunner) == V2
    assert isinstance(scheduler_of(llm), AsyncScheduler) == ASYNC
    if torch.cuda.is_available():
        # What the float32 tests count on: no product is rounded to TF32.
        import triton

        assert triton.knobs.language.fp32_default == "ieee" and torch.get_float32_matmul_precision() == "highest"
    rotations = {module.rotate for module in worker_of(llm).model_runner.model.modules() if hasattr(module, "rotate")}
    with_triton = torch.cuda.is_available() or os.environ.get("ROPESWITCH_TEST_TRITON") == "1"
    assert len(rotations) == 1 and (rotate_by_row in rotations) != with_triton
    check_batch(llm, phi3_reference, [60, 65, 20], max_tokens=8)


def test_a_captured_graph_would_read_the_same_buffers(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    """Every forward reads the tensors that were there at capture, as a replayed CUDA graph does; tokens stay right."""
    llm = start(phi3)
    runner = worker_of(llm).model_runner
    if V2:
        captured = {
            n: runner.model_state.prepare_dummy_inputs(n, n)["positions"] for n in range(1, runner.max_num_tokens + 1)
        }
    else:
        captured = {n: runner.positions[:n] for n in range(1, runner.max_num_tokens + 1)}
    by_rotation = (runner.model_state if V2 else runner).step_rows.by_rotation
    addresses = {module.rows.data_ptr() for module in runner.model.modules() if hasattr(module, "rows")}
    assert addresses == {rows.rows.data_ptr() for rows in by_rotation.values()}
    replayed: list[int] = []

    def replay(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        count = len(kwargs["positions"])
        replayed.append(count)
        return args, kwargs | {"positions": captured[count]}

    runner.model.register_forward_pre_hook(replay, with_kwargs=True)
    check_batch(llm, phi3_reference)
    # A prefill and 15 decodes at least.
    assert len(replayed) >= 16


def test_v1_keeps_true_positions_and_dummy_runs_read_rows(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    if V2:
        return
    llm = start(phi3, max_num_batched_tokens=48)
    check_batch(llm, phi3_reference, [200], max_tokens=3)
    runner = worker_of(llm).model_runner
    assert int(runner.positions[0]) == 201
    # Upstream gives the model what lies in this buffer, and there are 48 rows.
    runner._dummy_run(48)


def test_warm_up(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    """Upstream warms the V2 runner's kernels up with requests of its own, which no scheduler placed."""
    if not V2:
        return
    from vllm.v1.worker.gpu.warmup import run_mixed_prefill_decode_warmup

    llm = start(phi3)
    worker = worker_of(llm)
    assert run_mixed_prefill_decode_warmup(worker.model_runner, worker.execute_model, worker.sample_tokens, 16)
    check_batch(llm, phi3_reference, [60, 65, 20], max_tokens=8)


def test_drafts(start: Start, tmp_path: Path) -> None:
    """N-gram drafts made on the device: accepted in both sets, and every token still the reference's."""
    if not (V2 and ASYNC):
        return
    folder = checkpoints.phi3(tmp_path, vocab_size=16)
    drafter = {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    llm = start(folder, speculative_config=drafter)
    found = watch(scheduler_of(llm))
    reference = Reference.load(folder)
    token_lists = prompts([20, 50, 60, 61, 62, 63, 64, 65], vocabulary=16)
    check(llm, reference, token_lists, greedy(40))
    assert found.accepting_sets == {0, 1}


def test_a_state_that_a_ladder_does_not_reach(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused on both runners before weights are read, since there are none."""
    from vllm.model_executor.models.phi3 import Phi3ForCausalLM
    from vllm.v1.worker.gpu.model_states.interface import ModelState

    monkeypatch.setattr(Phi3ForCausalLM, "get_model_state_cls", lambda self: ModelState, raising=False)
    folder = checkpoints.phi3(tmp_path)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(UnsupportedError, match="model: Phi3ForCausalLM keeps ModelState"):
        start(folder)
