"""LMCacheMPConnector with LMCache's own server: blocks are found again in their own set alone, and every token is exact."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.placement import place
from tests.exactness.batches import Start, add, check_outputs, finish, finished
from tests.exactness.checkpoints import factors
from tests.exactness.engines import first_choice, greedy, prompts, run, scheduler_of
from tests.exactness.reference import Reference
from tests.lmcache.store import Lookups, Store, hits

StartStore = Callable[[], Store]
SHORT, LONG = 0, 1


def test_sets_stay_apart(start_store: StartStore, start: Start, phi3: Path, phi3_reference: Reference) -> None:
    store = start_store()
    plain: dict[str, Any] = {"enable_prefix_caching": False, "max_num_batched_tokens": 96}
    llm = start(phi3, kv_transfer_config=store.config(), **plain)
    below, crossing, above, deep = prompts([40, 60, 100, 300], seed=2)
    # Chunked prefills, a switch while the batch runs, and nothing stored yet.
    lookups = Lookups(llm)
    assert hits(llm, phi3_reference, [below, crossing, above, deep], max_tokens=12) == [0, 0, 0, 0]
    assert [found for found in lookups.found if found[0] == LONG] == [(LONG, 0)] * 3
    assert hits(llm, phi3_reference, [below, crossing, above, deep]) == [32, 32, 96, 288]
    # Equal tokens, in the set that they were not stored in.
    assert hits(llm, phi3_reference, [above[:40], deep[:64]], max_tokens=1) == [0, 0]
    # What the switch recomputed was stored in the long set: the prompt's first chunk.
    [(tokens, _)] = run(llm, [crossing], greedy(12))
    assert hits(llm, phi3_reference, [crossing + tokens]) == [32]
    # A request that switches finds what that prompt stored, the tokens that both chose included.
    lookups.found.clear()
    hits(llm, phi3_reference, [crossing], max_tokens=12)
    assert lookups.found == [(SHORT, 32), (LONG, 64)]

    # An engine that has computed nothing finds the same.
    llm.llm_engine.engine_core.shutdown()
    again = start(phi3, kv_transfer_config=store.config(), **plain)
    assert hits(again, phi3_reference, [below, crossing, above, deep]) == [32, 32, 96, 288]
    assert hits(again, phi3_reference, [deep[:61]]) == [32]
    # A request that moves while it waits is looked up anew, after the answer under its old salt too.
    scheduler = scheduler_of(again)
    again.llm_engine.add_request("moves", {"prompt_token_ids": above[:64]}, greedy(1))
    request = next(each for each in scheduler.requests.values() if each.num_tokens == 64)
    assert answer(scheduler.connector, request) == 32
    placed = place(scheduler.ladder, 64, forced=scheduler.ladder.sets.names[LONG], client_salt=None)
    scheduler._place(request, placed)
    assert answer(scheduler.connector, request) == 63
    again.llm_engine.abort_request(["moves"])
    # A client's salt keeps separating, one too that LMCache would reject.
    for salt in ("tenant", "tenant@7/\\" * 20):
        assert hits(again, phi3_reference, [(below, salt), (above, salt)]) == [0, 0]
        assert hits(again, phi3_reference, [(below, salt), (above, salt)]) == [32, 96]
        assert hits(again, phi3_reference, [(below, f"{salt}2")]) == [0]
    again.llm_engine.engine_core.shutdown()

    # Another ladder on the same store: its short set is the same one, its long set is not.
    first, second = llm.llm_engine.vllm_config.additional_config[KEY]["sets"]
    ladder = FactorLadder.checked([first, second | {"factors": factors(16, 1.1, 8.0)}])
    other = start(phi3, ladder, kv_transfer_config=store.config(), **plain)
    reference = Reference.load(phi3, ladder)
    assert hits(other, reference, [below, above, deep]) == [32, 0, 0]
    assert hits(other, reference, [crossing, deep], max_tokens=12) == [32, 288]


def answer(connector: Any, request: Any) -> int:
    """The tokens that a connector can load for a request, once its server has answered."""
    while True:
        count: int | None = connector.get_num_new_matched_tokens(request, 0)[0]
        if count is not None:
            return count
        time.sleep(0.01)


def test_preemption_and_prefix_cache(
    start_store: StartStore, start: Start, phi3: Path, phi3_reference: Reference
) -> None:
    """The smallest cache that holds the longest request: stores and loads while blocks are taken away and reused."""
    store = start_store()
    blocks = 10 * 32 * 2 * 2 * 2 * 32 * 4
    llm = start(phi3, kv_transfer_config=store.config(), kv_cache_memory_bytes=blocks, max_model_len=256)
    token_lists = prompts([30, 50, 58, 61, 64, 90, 130, 200], seed=3)
    for _ in range(3):
        hits(llm, phi3_reference, token_lists, max_tokens=30)
    lookups = Lookups(llm)
    hits(llm, phi3_reference, token_lists, max_tokens=2)
    assert {index for index, count in lookups.found if count} == {SHORT, LONG}


@pytest.mark.parametrize("moment", ["decoding", "loading"])
def test_a_killed_server_loses_no_request(
    moment: str, start_store: StartStore, start: Start, phi3: Path, phi3_reference: Reference
) -> None:
    store = start_store()
    llm = start(phi3, kv_transfer_config=store.config(), enable_prefix_caching=False)
    token_lists = prompts([40, 58, 100, 200], seed=4)
    hits(llm, phi3_reference, token_lists)
    lookups = Lookups(llm)
    add(llm, token_lists, greedy(20))

    def kill() -> None:
        # Loads are asynchronous: these are found, and then gone.
        if any(count for _, count in lookups.found) if moment == "loading" else scheduler_of(llm).running:
            store.kill()

    check_outputs(phi3_reference, token_lists, finish(llm, after_step=kill))
    # Later requests are computed.
    assert hits(llm, phi3_reference, token_lists) == [0] * 4


@pytest.mark.parametrize("moment", ["storing", "loading"])
def test_a_server_that_pauses_touches_no_block_that_others_use(
    moment: str, start_store: StartStore, start: Start, phi3: Path, phi3_reference: Reference
) -> None:
    """It is taken for dead meanwhile, and the blocks that it was copying go to other requests."""
    store = start_store()
    # Room for one of the long prompts and little more.
    blocks = 16 * 32 * 2 * 2 * 2 * 32 * 4
    llm = start(
        phi3, kv_transfer_config=store.config(), enable_prefix_caching=False, kv_cache_memory_bytes=blocks,
        max_model_len=480, max_num_batched_tokens=96,
    )  # fmt: skip
    scheduler = scheduler_of(llm)
    [prompt] = prompts([300], seed=5)
    if moment == "loading":
        hits(llm, phi3_reference, [prompt])
    lookups = Lookups(llm)
    add(llm, [prompt], greedy(20))
    answers: dict[str, Any] = {}
    while not (lookups.found and (moment == "loading" or scheduler.running)):
        answers |= finished(llm)
    store.pause()
    while "0" not in answers:
        answers |= finished(llm)
    others = prompts([250, 240, 230, 220], seed=6)
    add(llm, others, greedy(100), "other ")
    for _ in range(8):
        answers |= finished(llm)
    store.go_on()
    time.sleep(3)
    finish(llm, answers)
    check_outputs(phi3_reference, [prompt], answers)
    check_outputs(phi3_reference, others, answers, "other ")
    time.sleep(3)
    for _ in range(2):
        hits(llm, phi3_reference, [prompt])


def test_parameters_of_a_client_end_no_engine(
    start_store: StartStore, start: Start, phi3: Path, phi3_reference: Reference
) -> None:
    llm = start(phi3, kv_transfer_config=start_store().config())
    [prompt] = prompts([60], seed=7)
    most = "lmcache.max_offload_tokens"
    for name, value in ((most, "x"), (most, -1), ("cached_token_stats", 1)):
        asked = greedy(4, extra_args={"kv_transfer_params": {name: value}})
        [output] = llm.generate([{"prompt_token_ids": prompt}], asked, use_tqdm=False)
        phi3_reference.check(prompt, *first_choice(output.outputs[0]))
        # Gone before it is looked up.
        llm.llm_engine.add_request("gone", {"prompt_token_ids": prompt}, asked)
        llm.llm_engine.abort_request(["gone"])
    assert hits(llm, phi3_reference, [prompt])
