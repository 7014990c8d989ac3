"""A woken engine answers as before it slept: rows and tables are written anew, requests and cached blocks are recomputed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import LLM

from tests.exactness import checkpoints
from tests.exactness.conftest import starting
from tests.exactness.engines import check_batch, first_choice, greedy, prompts, run, scheduler_of, worker_of
from tests.exactness.reference import Reference
from tests.exactness.sleeping import FROM_FOLDER, GARBAGE, Pool, sleeping_cpus

LENGTHS = [62, 64, 65]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with sleeping_cpus() as pool:
        yield pool


@pytest.fixture(scope="module")
def llm(pool: Pool, phi3: Path) -> Iterator[LLM]:
    for start in starting(VLLM_ENABLE_V1_MULTIPROCESSING="0"):
        yield start(
            phi3,
            enable_prefix_caching=True,
            max_num_seqs=4,
            weight_transfer_config=FROM_FOLDER,
        )


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, trained further."""
    return checkpoints.phi3(tmp_path_factory.mktemp("other"), seed=9)


def what_graphs_read(llm: LLM) -> list[torch.Tensor]:
    """Tensors whose addresses a captured CUDA graph has."""
    runner = worker_of(llm).model_runner
    found = [each.rows for each in runner.get_model().modules() if hasattr(each, "rows")]
    if hasattr(runner, "model_state"):
        found.append(runner.model_state.prepare_dummy_inputs(1, 8)["positions"])
    return found


def test_level_2_discards_rows_and_tables(llm: LLM, pool: Pool, phi3_reference: Reference) -> None:
    check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)
    read = what_graphs_read(llm)
    addresses = [each.data_ptr() for each in read]
    llm.sleep(level=2)
    assert all((each.view(torch.uint8) == GARBAGE).all() for each in read)
    llm.wake_up(tags=["weights"])
    # Weights are garbage until they are loaded; the engine takes no request before its cache is there.
    assert pool.gone == {"kv_cache"} and llm.llm_engine.is_sleeping()
    llm.collective_rpc("reload_weights")
    llm.wake_up(tags=["kv_cache"])
    assert not pool.gone and not llm.llm_engine.is_sleeping()
    assert [each.data_ptr() for each in what_graphs_read(llm)] == addresses
    assert worker_of(llm).get_model().positions_checked
    check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)


@pytest.mark.full
def test_level_1(llm: LLM, phi3_reference: Reference) -> None:
    llm.sleep(level=1)
    llm.wake_up()
    check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)


@pytest.mark.full
def test_the_cache_may_wake_first(llm: LLM, pool: Pool, phi3_reference: Reference) -> None:
    llm.sleep(level=2)
    llm.wake_up(tags=["kv_cache"])
    assert pool.gone == {"weights"}
    llm.wake_up()
    llm.collective_rpc("reload_weights")
    check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)


@pytest.mark.parametrize("level", [pytest.param(1, marks=pytest.mark.full), 2])
def test_requests_of_every_set_sleep_along(llm: LLM, phi3_reference: Reference, level: int) -> None:
    """Running ones on both sides of a switch, and waiting ones, lose their keys and go on where they were."""
    core, scheduler = llm.llm_engine, scheduler_of(llm)
    # More than may run at once; whichever run first, the first switch is early.
    token_lists = prompts([62, 63, 65, 61, 63, 62], seed=3)
    for index, tokens in enumerate(token_lists):
        core.add_request(f"{level}-{index}", {"prompt_token_ids": tokens}, greedy(8))
    done: dict[str, Any] = {}
    while not any(request.num_tokens > 64 for request in scheduler.running if request.num_prompt_tokens < 64):
        done |= {output.request_id: output for output in core.step() if output.finished}
    assert scheduler.get_num_unfinished_requests() > len(scheduler.running) and not done
    llm.sleep(level=level, mode="keep")
    assert not scheduler.running
    llm.wake_up(tags=["weights"])
    if level == 2:
        llm.collective_rpc("reload_weights")
    llm.wake_up(tags=["kv_cache"])
    while core.has_unfinished_requests():
        done |= {output.request_id: output for output in core.step() if output.finished}
    for index, tokens in enumerate(token_lists):
        generated, log_probs = first_choice(done[f"{level}-{index}"].outputs[0])
        assert len(generated) == 8
        phi3_reference.check(tokens, generated, log_probs)


def test_cached_blocks_of_every_set_are_forgotten(llm: LLM, phi3_reference: Reference) -> None:
    token_lists = prompts([64, 150], seed=4)
    forgets: list[Callable[[], Any]] = [
        llm.reset_prefix_cache,
        lambda: (llm.sleep(level=1), llm.wake_up()),
        lambda: (llm.sleep(level=2), llm.wake_up(), llm.collective_rpc("reload_weights")),
    ]
    for forget in forgets:
        for cached in (True, False):
            run(llm, token_lists, greedy(1))
            if not cached:
                forget()
            outputs = llm.generate([{"prompt_token_ids": each} for each in token_lists], greedy(4), use_tqdm=False)
            assert [output.num_cached_tokens > 0 for output in outputs] == [cached, cached]
            for tokens, output in zip(token_lists, outputs, strict=True):
                phi3_reference.check(tokens, *first_choice(output.outputs[0]))


@pytest.mark.full
def test_a_reset_while_requests_run(llm: LLM, phi3_reference: Reference) -> None:
    """The prefix cache is reset at every third step, through switches."""
    core = llm.llm_engine
    token_lists = prompts([58, 62, 64, 65], seed=5)
    for index, tokens in enumerate(token_lists):
        core.add_request(f"reset-{index}", {"prompt_token_ids": tokens}, greedy(12))
    done: dict[str, Any] = {}
    steps = 0
    while core.has_unfinished_requests():
        done |= {output.request_id: output for output in core.step() if output.finished}
        steps += 1
        if steps % 3 == 0:
            assert core.engine_core.reset_prefix_cache(reset_running_requests=True)
    for index, tokens in enumerate(token_lists):
        phi3_reference.check(tokens, *first_choice(done[f"reset-{index}"].outputs[0]))


def test_other_weights_asleep(llm: LLM, phi3: Path, other: Path, phi3_reference: Reference) -> None:
    """Weights of a trainer, then those of a folder: each in the format of checkpoints, into modules that keep their rows."""
    addresses = [each.data_ptr() for each in what_graphs_read(llm)]
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])
    llm.start_weight_update()
    llm.update_weights({"update_info": {"folder": str(other)}})
    llm.finish_weight_update()
    llm.wake_up(tags=["kv_cache"])
    assert [each.data_ptr() for each in what_graphs_read(llm)] == addresses
    check_batch(llm, Reference.load(other), LENGTHS, max_tokens=5)
    # Without a sleep, cached blocks are of the old weights until the cache is reset, as in stock vLLM.
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(phi3)})
    assert llm.reset_prefix_cache()
    assert [each.data_ptr() for each in what_graphs_read(llm)] == addresses
    check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)
