"""A woken engine answers as before it slept: rows and tables are written anew, requests and cached blocks are recomputed."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import LLM

from tests.exactness import checkpoints
from tests.exactness.batches import add, check_batch, check_outputs, finish, finished
from tests.exactness.conftest import starting
from tests.exactness.engines import first_choice, generate, greedy, prompts, run, scheduler_of, worker_of
from tests.exactness.reference import Reference
from tests.exactness.sleeping import FROM_FOLDER, GARBAGE, Pool, sleep_and_wake, sleeping_cpus

LENGTHS = [62, 64, 65]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with sleeping_cpus() as pool:
        yield pool


@pytest.fixture(scope="module")
def llm(pool: Pool, phi3: Path) -> Iterator[LLM]:
    for start in starting(VLLM_ENABLE_V1_MULTIPROCESSING="0"):
        yield start(phi3, enable_prefix_caching=True, max_num_seqs=4, weight_transfer_config=FROM_FOLDER)


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
def test_level_1_and_a_cache_that_wakes_first(llm: LLM, pool: Pool, phi3_reference: Reference) -> None:
    sleep_and_wake(llm, 1)
    check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)
    llm.sleep(level=2)
    llm.wake_up(tags=["kv_cache"])
    assert pool.gone == {"weights"}
    llm.wake_up()
    llm.collective_rpc("reload_weights")
    check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)


@pytest.mark.parametrize("level", [pytest.param(1, marks=pytest.mark.full), 2])
def test_requests_of_every_set_sleep_along(llm: LLM, phi3_reference: Reference, level: int) -> None:
    """Running ones on both sides of a switch, and waiting ones, lose their keys and go on where they were."""
    scheduler = scheduler_of(llm)
    # More than may run at once; whichever run first, the first switch is early.
    token_lists = prompts([62, 63, 65, 61, 63, 62], seed=3)
    add(llm, token_lists, greedy(8), f"{level}-")
    done: dict[str, Any] = {}
    while not any(request.num_tokens > 64 for request in scheduler.running if request.num_prompt_tokens < 64):
        done |= finished(llm)
    assert scheduler.get_num_unfinished_requests() > len(scheduler.running) and not done
    llm.sleep(level=level, mode="keep")
    assert not scheduler.running
    llm.wake_up(tags=["weights"])
    if level == 2:
        llm.collective_rpc("reload_weights")
    llm.wake_up(tags=["kv_cache"])
    check_outputs(phi3_reference, token_lists, finish(llm, done), f"{level}-")
    assert {len(output.outputs[0].token_ids) for output in done.values()} == {8}


def test_cached_blocks_of_every_set_are_forgotten(llm: LLM, phi3_reference: Reference) -> None:
    token_lists = prompts([64, 150], seed=4)
    forgets: list[Callable[[], Any]] = [
        llm.reset_prefix_cache,
        lambda: sleep_and_wake(llm, 1),
        lambda: sleep_and_wake(llm, 2),
    ]
    for forget in forgets:
        for cached in (True, False):
            run(llm, token_lists, greedy(1))
            if not cached:
                forget()
            outputs = generate(llm, token_lists, greedy(4))
            assert [output.num_cached_tokens > 0 for output in outputs] == [cached, cached]
            for tokens, output in zip(token_lists, outputs, strict=True):
                phi3_reference.check(tokens, *first_choice(output.outputs[0]))


@pytest.mark.full
def test_a_reset_while_requests_run(llm: LLM, phi3_reference: Reference) -> None:
    """The prefix cache is reset at every third step, through switches."""
    steps = count(1)

    def reset() -> None:
        assert next(steps) % 3 or llm.llm_engine.engine_core.reset_prefix_cache(reset_running_requests=True)

    token_lists = prompts([58, 62, 64, 65], seed=5)
    add(llm, token_lists, greedy(12), "reset-")
    check_outputs(phi3_reference, token_lists, finish(llm, after_step=reset), "reset-")


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
