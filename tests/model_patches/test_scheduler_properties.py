"""Every token, key and block is checked at every step, in every mode of the scheduler; see ``hash_engine.py``."""

from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.switch.engine.scheduler import LadderSchedulerOutput
from ropeswitch.model_patches.switch.placement import place
from tests.exactness.batches import full_but
from tests.model_patches.hash_engine import LADDER, MODES, VOCABULARY, Engine, Start, drawing, expected
from tests.model_patches.hash_tier import HashTier

pytestmark = pytest.mark.usefixtures("looks_at_every_step")
# A set's name and a ladder policy.
ASKED = [(None, None)] * 6 + [(name, None) for name in LADDER.names] + [(None, "reserve")] * 3
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt length
        st.integers(1, 23),  # tokens to say
        st.integers(0, 2),  # which of three texts the prompt is a prefix of
        st.sampled_from(ASKED),
        st.sampled_from([None, None, "alice"]),
        st.integers(0, 12),  # arrives at this step
        st.sampled_from([None] * 5 + list(range(1, 30))),  # is aborted at this step
    ),
    min_size=1,
    max_size=7,
)
# One mode of each kind; `make test-full` adds their combinations.
SOON = ("v1", "v1-upstream-order", "v2-async-eagle", "v2-async-pipeline-ngram", "v2-async-priority")


def play(
    engine: Engine,
    requests: list[Any],
    before_step: Callable[[int], object] = lambda now: None,
    throttled: Container[int] = (),
) -> None:
    """Add and abort the requests at their steps until the engine is idle; every token is right, and every block free again.

    In the steps ``throttled``, the scheduler throttles prefills.
    """
    scheduler = engine.scheduler
    texts = [[1 + (i * i + text) % (VOCABULARY - 1) for i in range(40)] for text in range(3)]
    aborted = set()
    for now in range(2000):
        for number, (length, count, text, asked, salt, arrives, leaves) in enumerate(requests):
            name = str(number)
            if arrives == now:
                forced, policy = asked
                engine.add(name, texts[text][:length], count, forced, salt, policy)
            if leaves == now and name in scheduler.requests:
                scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                aborted.add(name)
        before_step(now)
        engine.step(throttle_prefills=now in throttled)
        if now > 30 and not scheduler.has_requests() and not engine.flights:
            break
    else:
        raise AssertionError("some request starved")
    for number, (length, count, text, asked, *_) in enumerate(requests):
        want, generated = expected(texts[text][:length], count, *asked), engine.generated[str(number)]
        assert generated == want[: len(generated)]
        assert len(generated) == count or str(number) in aborted
    engine.check_empty()


def resetting(engine: Engine, reset: int | None) -> Callable[[int], object]:
    """Resets the prefix cache before that step."""
    return lambda now: now == reset and engine.scheduler.reset_prefix_cache(reset_running_requests=True)


@pytest.mark.parametrize("mode", full_but(SOON, MODES))
@given(
    requests=REQUESTS,
    blocks=st.integers(17, 40),
    reset=st.sampled_from([None, None, *range(1, 30)]),
    throttled=st.sampled_from([set(), set(range(0, 60, 2)), set(range(60))]),
)
@drawing(45)
def test_every_token_in_its_set(
    start: Start, mode: str, requests: list[Any], blocks: int, reset: int | None, throttled: set[int]
) -> None:
    """Random arrivals, lengths, crossings, rejections, preemptions, aborts and cache resets, in every mode."""
    engine = start(mode, blocks)
    play(engine, requests, resetting(engine, reset), throttled)


def test_blocks_that_a_preempted_step_was_to_fill_are_not_cached(start: Start) -> None:
    """Found by the test above: by priority, upstream preempts what the same step has scheduled, and keeps their hashes."""
    engine, anyone = start("v2-async-priority", 18), (0, (None, None), None)
    requests = [(1, 1, *anyone, 0, None)] * 4 + [(5, 5, *anyone, 0, None), (15, 5, *anyone, 4, None)]
    play(engine, [*requests, (36, 2, *anyone, 3, None)], resetting(engine, 7))


TIERS = st.builds(
    HashTier,
    chunks=st.sampled_from([2, 7, 500]),
    blocks_per_chunk=st.integers(1, 2),
    lag=st.integers(0, 4),
    prompt_only=st.booleans(),
)


@pytest.mark.parametrize("mode", full_but(("v1", "v2-async"), MODES))
@given(
    requests=REQUESTS,
    blocks=st.integers(17, 40),
    tier=TIERS,
    resets=st.dictionaries(st.integers(1, 30), st.booleans(), max_size=3),
)
@drawing(20, max_examples=20, phases=(Phase.reuse, Phase.generate))
def test_every_token_in_its_set_with_a_tier(
    start: Start, mode: str, requests: list[Any], blocks: int, tier: HashTier, resets: dict[int, bool]
) -> None:
    """Blocks go to a tier, small or large, and come back, across arrivals, crossings, preemptions, aborts and resets."""
    engine = start(mode, blocks, tier)
    scheduler = engine.scheduler

    def before_step(now: int) -> None:
        if now in resets:
            # Upstream fails where a load or a step in flight holds blocks, and asserts that no other reset of the tier
            # waits for a step, both once it has preempted every request.
            with suppress(RuntimeError, AssertionError):
                scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=resets[now])

    play(engine, requests, before_step)
    assert not scheduler.connector.scheduler._req_status


@pytest.mark.parametrize("tier", [None, HashTier(500, 1, 2, False)], ids=["", "tier"])
@pytest.mark.parametrize("mode", ["v1", "v2-async"])
def test_what_runs_when_the_engine_is_paused_finishes(start: Start, mode: str, tier: HashTier | None) -> None:
    """Across two switches; what waits stays where it is."""
    engine = start(mode, 40, tier)
    engine.add("runs", [1] * 8, 20)
    engine.run(3)
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    engine.add("waits", [2] * 8, 3)
    engine.run(60)
    assert engine.generated == {"runs": expected([1] * 8, 20), "waits": []}
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run(20)
    assert engine.generated["waits"] == expected([2] * 8, 3)


@pytest.mark.parametrize("mode", ["v1", "v2-async"])
def test_requests_that_switch_together_keep_their_order(start: Start, mode: str) -> None:
    engine = start(mode, 40)
    names = ["first", "second", "third"]
    for number, name in enumerate(names):
        engine.add(name, [1 + number] * 3, 12)
    orders = []
    upstream = engine.forward

    def forward(output: LadderSchedulerOutput) -> ModelRunnerOutput:
        if len(output.rope_sets) > 1:
            orders.append(list(output.num_scheduled_tokens))
        return upstream(output)

    engine.forward = forward  # type: ignore[method-assign]
    engine.run(60)
    assert len(orders) > 1 and all(order == [name for name in names if name in order] for order in orders), orders


@pytest.mark.parametrize("mode", ["v1", "v2-async", "v1-upstream-order"])
def test_an_answer_that_moves_to_its_next_set_is_not_held_by_the_prefill_interval(start: Start, mode: str) -> None:
    """Nor while its tokens are recomputed in several steps."""
    engine = start(mode, 40, prefill_interval=200)
    engine.add("beside", [2] * 3, 55, forced="to64")
    engine.add("moves", [1] * 3, 35)
    engine.run(75)
    assert engine.generated["moves"] == expected([1] * 3, 35)


SESSION_MODES = [name for name, mode in MODES.items() if not mode.reads_ahead and mode.stages == 1]


@pytest.mark.parametrize("mode", full_but(("v1", "v1-ngram"), SESSION_MODES))
@given(
    turns=st.lists(st.tuples(st.integers(1, 10), st.integers(1, 6)), min_size=2, max_size=4), blocks=st.integers(35, 50)
)
@drawing(30)
def test_a_streaming_session_moves_up_as_its_prompt_grows(
    start: Start, mode: str, turns: list[tuple[int, int]], blocks: int
) -> None:
    """Upstream keeps a session's keys while its prompt grows; across a limit they must be made again."""
    engine = start(mode, blocks)
    engine.generated["s"] = []
    for turn, (length, count) in enumerate(turns):
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        words = [1 + (i + turn) % (VOCABULARY - 1) for i in range(length)]
        engine.enter("s", words, params, resumable=True)
        engine.generated["s"].clear()
        for _ in range(50):
            engine.step()
            if len(engine.generated["s"]) == count:
                break
        session = engine.scheduler.requests["s"]
        before = list(session.all_token_ids)[: session.num_tokens - count]
        assert engine.generated["s"] == expected(before, count)
        # Others find no key of the session's in the prefix cache that is not what it says.
        for probe in range(1, len(before) + 1, 5):
            engine.add(f"probe {turn} {probe}", before[:probe], 1)
        engine.run(50)
        for probe in range(1, len(before) + 1, 5):
            assert engine.generated[f"probe {turn} {probe}"] == expected(before[:probe], 1)
    engine.scheduler.finish_requests("s", RequestStatus.FINISHED_ABORTED)
    engine.step()
    engine.step()
    engine.check_empty()


@pytest.mark.parametrize("mode", ["v1", "v2-async"])
def test_a_session_whose_next_chunk_reserves_less_stays_in_its_set(start: Start, mode: str) -> None:
    """Moving down would recompute the session."""
    engine = start(mode, 40)
    engine.generated["s"] = []
    reserve = {"rope_ladder_policy": "reserve"}
    stops = list(range(VOCABULARY))
    first = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=stops, extra_args=reserve)
    engine.enter("s", [1] * 3, first, resumable=True)
    engine.run(6)
    session = engine.scheduler.requests["s"]
    assert len(engine.generated["s"]) == 1 and session.num_computed_tokens
    before = engine.scheduler.placements["s"]
    assert before.name == "to33"
    engine.enter("s", [2], SamplingParams(temperature=0.0, max_tokens=1, extra_args=reserve), resumable=True)
    after = engine.scheduler.placements["s"]
    assert (after.name, after.salt, after.limit) == ("to33", before.salt, 1)
    assert session.num_computed_tokens and session.cache_salt == before.salt


def test_a_message_of_vllms_own_about_a_rejected_request_ends_no_engine(start: Start) -> None:
    """``AsyncLLM.notify_kv_transfer_request_rejected`` makes a request that no input processor has placed."""
    engine = start("v1", 10)
    transfer = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_prefill": True}})
    request = Request("r", [0], transfer, None, block_hasher=engine.hasher, abort_immediately=True)
    engine.scheduler.add_request(request)
    engine.scheduler.finish_requests("r", RequestStatus.FINISHED_ABORTED)
    engine.step()
    assert not engine.scheduler.placements
    unplaced = Request("u", [0], SamplingParams(max_tokens=1), None, block_hasher=engine.hasher)
    with pytest.raises(FactorError, match="no factor set was chosen for it"):
        engine.scheduler.add_request(unplaced)


def test_a_request_that_came_placed_too_low_runs_in_the_set_of_its_length(start: Start) -> None:
    engine, prompt = start("v1", 40), [1 + i % (VOCABULARY - 1) for i in range(12)]
    low = place(engine.scheduler.ladder, 1)
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    engine.generated["r"] = []
    request = Request("r", prompt, low.carried_by(params), None, cache_salt=low.salt, block_hasher=engine.hasher)
    engine.scheduler.add_request(request)
    assert engine.scheduler.placements["r"].index > low.index
    engine.run(10)
    assert engine.generated["r"] == expected(prompt, 3)


def test_a_session_that_outgrows_the_ladder_ends_no_engine(start: Start) -> None:
    engine = start("v1")
    engine.generated["s"] = []
    longest = engine.scheduler.ladder.sets.max_length
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    engine.enter("s", [1] * (longest - 2), params, resumable=True)
    engine.run(12)
    engine.enter("s", [1] * 5, params, resumable=True)
    assert engine.scheduler.requests["s"].num_tokens > longest
    assert engine.scheduler.placements["s"].name == LADDER.names[-1]
