"""Native KV offloading: blocks in the host tier are found by the factor set that rotated them, and never by another."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM
from vllm.v1.request import RequestStatus

from tests.exactness.batches import LENGTHS, SMALL, Start, check_aborting, check_batch
from tests.exactness.engines import first_choice, greedy, preemptions, prompts, scheduler_of
from tests.exactness.host_tier import Tally, host_tier
from tests.exactness.reference import Reference


@pytest.fixture
def offloading(start: Start, phi3: Path) -> Callable[..., tuple[LLM, Tally]]:
    def begin(**changes: Any) -> tuple[LLM, Tally]:
        arguments = {"enable_prefix_caching": True, "kv_transfer_config": host_tier(), "disable_log_stats": False}
        llm = start(phi3, **arguments | changes)
        return llm, Tally.of(llm)

    return begin


def ask(llm: LLM, reference: Reference, prompt: list[int], count: int) -> int:
    """Check an answer after the engine's own prefix cache is emptied; returns the prompt's tokens that were supplied."""
    empty(llm)
    output = llm.generate([{"prompt_token_ids": prompt}], greedy(count), use_tqdm=False)[0]
    tokens, log_probs = first_choice(output.outputs[0])
    assert len(tokens) == count
    reference.check(prompt, tokens, log_probs)
    return output.num_cached_tokens or 0


def settle(llm: LLM) -> None:
    """Run the engine until its transfers are over, and check that nothing is left of any request."""
    scheduler, steps = scheduler_of(llm), 0
    while scheduler.has_requests():
        llm.llm_engine.step()
        steps += 1
        assert steps < 200
    assert not scheduler.requests and not scheduler.connector.scheduler._req_status
    pool = scheduler.kv_cache_manager.block_pool
    # One is the null block.
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def empty(llm: LLM) -> None:
    """Empty the engine's own prefix cache once it is idle; the tier keeps its blocks."""
    settle(llm)
    assert llm.reset_prefix_cache()


def test_hits_in_each_set_and_none_across(offloading: Any, phi3_reference: Reference) -> None:
    llm, tally = offloading()
    for seed in (11, 12):
        (long,) = prompts([160], seed=seed)
        short = long[:64]
        for prompt in (short, long) if seed == 11 else (long, short):
            assert ask(llm, phi3_reference, prompt, 1) == 0
        tally.take()
        # The last token is computed for its logits all the same.
        assert [ask(llm, phi3_reference, prompt, 1) for prompt in (long, short)] == [160, 64]
        assert tally.take()[:2] == (2, 160 + 64)
    # A request that switches leaves its prompt in the first set, and finds the second set's in the tier.
    (long,) = prompts([160], seed=13)
    ask(llm, phi3_reference, long, 1)
    tally.take()
    assert ask(llm, phi3_reference, long[:60], 30) == 0
    computed, external, resumed = tally.take()
    # With a step in flight the next set's keys may be computed ahead, which finds the block first.
    assert external == 0 and resumed >= 32 and computed <= 60 + 29 + 64 - 32
    assert ask(llm, phi3_reference, long[:60], 30) == 32


@pytest.mark.full
def test_mixed_batch(offloading: Any, phi3_reference: Reference) -> None:
    """Every request crosses beside others, stores and loads in flight; the second round's hits come from the tier."""
    llm, tally = offloading()
    check_batch(llm, phi3_reference)
    first = tally.take()
    assert first[1] == 0
    for _ in range(2):
        empty(llm)
        check_batch(llm, phi3_reference)
        computed, external, _ = tally.take()
        assert external == sum(length // 32 * 32 for length in LENGTHS)
        assert computed < first[0] - external


@pytest.mark.full
@pytest.mark.parametrize("blocks", [3, 1024])
def test_preemption_and_a_full_tier(offloading: Any, phi3_reference: Reference, blocks: int) -> None:
    """Room for 17 blocks, of which the batch needs more than 40, and a tier that has no room for most of them."""
    llm, tally = offloading(kv_transfer_config=host_tier(blocks), **SMALL)
    preempted = preemptions(scheduler_of(llm))
    for _ in range(2):
        check_batch(llm, phi3_reference, max_tokens=60)
        empty(llm)
    assert len(preempted) > len({request.request_id for request in preempted})
    _, external, resumed = tally.take()
    assert (external + resumed > 0) or blocks == 3


@pytest.mark.full
def test_aborts_and_resets_with_transfers_in_flight(offloading: Any, phi3_reference: Reference) -> None:
    """Requests leave while their blocks are loaded, stored or given up at a switch; last, all caches are emptied."""
    llm, tally = offloading(kv_transfer_config=host_tier(lag=4))
    scheduler = scheduler_of(llm)
    connector = scheduler.connector.scheduler
    # One that leaves and one that stays, of each kind: loaded, crossing after a load, crossing, long.
    token_lists = [each for each in prompts([150, 61, 62, 200], seed=3) for _ in range(2)]
    for prompt in token_lists[:4]:
        ask(llm, phi3_reference, prompt, 8)

    def stores(request: Any) -> bool:
        state = connector._req_status.get(request.request_id)
        return state is not None and any(connector._jobs[job].is_store for job in state.transfer_jobs)

    # Upstream fails to reset under steps in flight, whose blocks a connector may be reading.
    asynchronous = scheduler.scheduler_config.async_scheduling
    emptied: list[bool] = []

    def empties(request: Any) -> bool:
        loading = any(each.status == RequestStatus.WAITING_FOR_REMOTE_KVS for each in scheduler.requests.values())
        if not asynchronous and not emptied and not loading and request.num_output_tokens >= 2:
            with suppress(RuntimeError):
                emptied.append(scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True))
        return False

    for leaves, some in (
        (lambda request: request.status == RequestStatus.WAITING_FOR_REMOTE_KVS, True),
        (lambda request: request.status == RequestStatus.PREEMPTED, True),
        (stores, True),
        (empties, False),
    ):
        if leaves is stores:
            # Nothing of these is in the tier yet.
            token_lists = [each for each in prompts([150, 61, 62, 200], seed=8) for _ in range(2)]
        empty(llm)
        assert bool(check_aborting(llm, phi3_reference, token_lists, 8, leaves)) == some
    assert emptied == [True] or asynchronous
    tally.take()
    for prompt in token_lists[1::2]:
        ask(llm, phi3_reference, prompt, 8)
    assert tally.take()[1] > 0


def session_turn(llm: LLM, name: str, tokens: list[int], count: int) -> tuple[list[int], list[float]]:
    """One turn of a streaming session: its tokens, and the answer's log-probabilities."""
    core = llm.llm_engine.engine_core.engine_core
    request = llm.llm_engine.input_processor.process_inputs(
        name, {"prompt_token_ids": tokens}, greedy(count), llm.llm_engine.get_supported_tasks(), resumable=True
    )
    core.add_request(*core.preprocess_add_request(request))
    answer: list[int] = []
    scores: list[float] = []
    for _ in range(200):
        outputs, _ = core.step_fn()
        core.post_step(True)
        # None from a step that was planned only.
        for output in (each for batch in (outputs or {}).values() for each in batch.outputs):
            answer += output.new_token_ids
            scores += [row[0] for row in output.new_logprobs.logprobs.tolist()]
        if len(answer) == count:
            return answer, scores
    raise AssertionError(f"{len(answer)} tokens")


@pytest.mark.full
def test_sessions(offloading: Any, phi3_reference: Reference) -> None:
    """Each chunk of a streaming session goes on with the last one's blocks, or moves up; all are stored as they are."""
    llm, _ = offloading(kv_transfer_config=host_tier(lag=3))
    chunks = prompts([20, 26, 50, 70, 33], seed=4)
    sequence: list[int] = []
    for chunk in chunks:
        sequence += chunk
        answer, log_probs = session_turn(llm, "session", chunk, 5)
        phi3_reference.check(sequence, answer, log_probs)
        # Upstream drops the last token of each answer, whose keys were never computed.
        sequence += answer[:-1]
        # Others take the blocks that a session gives up.
        (other,) = prompts([90], seed=len(sequence))
        output = llm.generate([{"prompt_token_ids": other}], greedy(3), use_tqdm=False)[0]
        phi3_reference.check(other, *first_choice(output.outputs[0]))
    core = llm.llm_engine.engine_core.engine_core
    core.abort_requests(["session"])
    assert ask(llm, phi3_reference, sequence[:64], 2) == 32
    assert ask(llm, phi3_reference, sequence, 2) >= 192


@pytest.mark.full
@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a_tier_that_loses_blocks(offloading: Any, phi3_reference: Reference, policy: str) -> None:
    """The first two loads end with a block of garbage, which the connector reports; nothing of it reaches an answer."""
    tier = host_tier(lose=2, rope_set_in_keys=True)
    tier.kv_connector, tier.kv_connector_module_path = "LossyConnector", "tests.exactness.host_tier"
    tier.kv_load_failure_policy = policy
    llm, tally = offloading(kv_transfer_config=tier)
    short, long = prompts([61, 150], seed=5)
    for prompt in (short, long):
        assert ask(llm, phi3_reference, prompt, 6) == 0
    for lost in (True, False):
        for prompt in (short, long):
            empty(llm)
            tally.take()
            output = llm.generate([{"prompt_token_ids": prompt}], greedy(6), use_tqdm=False)[0].outputs[0]
            if lost and policy == "fail":
                assert output.finish_reason == "error" and not output.token_ids
                continue
            phi3_reference.check(prompt, *first_choice(output))
            assert len(output.token_ids) == 6
            # The blocks before the lost one count, and where there are none the tier is asked again.
            _, external, _ = tally.take()
            assert external == len(prompt) // 32 * 32 or lost


@pytest.mark.full
def test_a_file_tier_outlives_engines_and_ladders(start: Start, phi3: Path, tmp_path: Path) -> None:
    """An engine with another ladder finds the blocks of the set that both have, whatever its name, and no others."""
    from vllm.transformers_utils.config import get_config

    from ropeswitch.factors.factor_set import FactorLadder
    from ropeswitch.factors.hf_config import ladder_from_config

    own = ladder_from_config(get_config(str(phi3), trust_remote_code=False).to_dict())
    assert own is not None
    first, second = own.to_json()
    other = [first | {"name": "window"}, second | {"factors": [1.5 * each for each in second["factors"]]}]
    short, long = prompts([61, 150], seed=6)
    found: list[list[int]] = []
    for ladder in (own, FactorLadder.checked(other), own):
        tiers = [{"type": "fs", "root_dir": str(tmp_path), "n_read_threads": 1, "n_write_threads": 1}]
        tier = host_tier(32, spec_name="TieredHostSpec", secondary_tiers=tiers)
        llm = start(phi3, ladder, enable_prefix_caching=True, kv_transfer_config=tier)
        reference = Reference.load(phi3, ladder)
        found.append([ask(llm, reference, prompt, 10) for prompt in (short, long)])
        settle(llm)
        llm.llm_engine.engine_core.shutdown()
    assert found == [[0, 0], [32, 0], [32, 128]]
    # Files that vanish are misses.
    for file in tmp_path.rglob("*.bin"):
        file.unlink()
    llm = start(phi3, own, enable_prefix_caching=True, kv_transfer_config=tier)
    assert [ask(llm, Reference.load(phi3, own), prompt, 10) for prompt in (short, long)] == [0, 0]
