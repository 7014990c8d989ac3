"""Requests that upstream's scheduler starts only under a condition, which the plan must meet or make room for."""

import pytest
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from ropeswitch.model_patches.scheduling.scheduler import LengthAwareScheduler
from ropeswitch.model_patches.switch.engine.scheduler import LadderSchedulerOutput
from tests.exactness.engines import preemptions
from tests.model_patches.hash_engine import Start, expected


@pytest.mark.parametrize("name", ["v1", "v1-ngram", "v2-async-ngram"])
def test_a_prompt_that_fills_the_model_and_the_cache(start: Start, name: str) -> None:
    """Drafts need no blocks before the prompt is there."""
    engine = start(name, 17)
    prompt = [1 + i % 4 for i in range(62)]
    engine.add("long", prompt, 1)
    engine.run(100)
    assert engine.generated["long"] == expected(prompt, 1)


def test_streams_that_take_the_whole_budget_leave_a_chunk(start: Start) -> None:
    """Four streams with three drafts each may fill a step of 12 tokens."""
    engine = start("v1-ngram")
    for i in range(3):
        engine.add(str(i), [1 + i] * 4, 40)
    engine.run(6)
    engine.add("late", [1, 2, 3, 4, 1, 2], 2)
    engine.run(30)
    assert engine.generated["late"] == expected([1, 2, 3, 4, 1, 2], 2)


def test_what_is_cheapest_to_compute_again_is_preempted(start: Start) -> None:
    """Not, as in upstream's order, who came last."""
    engine = start("v1", 17)
    engine.add("small", [1, 2, 3, 4], 24, "to64")
    engine.add("big", [1 + i % 4 for i in range(36)], 24, "to64")
    preempted = preemptions(engine.scheduler)
    engine.run(100)
    assert {request.request_id for request in preempted} == {"small"}
    assert engine.generated["small"] == expected([1, 2, 3, 4], 24, "to64")
    assert len(engine.generated["big"]) == 24


def test_a_held_prefill_is_not_sent_to_the_runner_again(start: Start) -> None:
    """Upstream's V1 protocol repeats all tokens of a request that missed a step, of which the runner reads output alone."""
    engine = start("v1-async")
    engine.add("long", [1 + i % 4 for i in range(60)], 1, "to64")
    sent: list[tuple[bool, set[str]]] = []
    forward = engine.forward
    before: set[str] = set()

    def watch(output: LadderSchedulerOutput) -> ModelRunnerOutput:
        nonlocal before
        now = set(output.num_scheduled_tokens)
        back = "long" in now - before and "long" not in output.rope_sets
        sent.append((back, set(output.scheduled_cached_reqs.all_token_ids)))
        before = now
        return forward(output)

    engine.forward = watch  # type: ignore[method-assign]
    for i in range(60):
        if i % 4 == 1:
            engine.add(str(i), [1, 2, 3, 1 + i % 3], 2)
        engine.step()
    assert any(back for back, _ in sent), "the long prefill was never held"
    assert not any("long" in names for _, names in sent)
    assert engine.generated["long"] == expected([1 + i % 4 for i in range(60)], 1, "to64")


@pytest.mark.parametrize("name", ["v1", "v2-async"])
def test_a_server_of_one_request_at_a_time(start: Start, name: str) -> None:
    """Each in its turn; a stream that switches keeps its place, and no internal request takes it."""
    engine = start(name, sequences=1)
    prompts = {str(i): [1 + (i + j) % 4 for j in range(8)] for i in range(3)}
    for each, prompt in prompts.items():
        engine.add(each, prompt, 30)
    for _ in range(200):
        engine.step()
        assert len(engine.scheduler.running) <= 1
    for each, prompt in prompts.items():
        assert engine.generated[each] == expected(prompt, 30)


@pytest.mark.parametrize("length", [30, 62], ids=["shorter", "longer"])
def test_a_prompt_starts_past_many_that_wait_for_their_grammar(start: Start, length: int) -> None:
    """It is younger than all that are tried for space, and too long for a short step."""
    engine = start("v1")
    assert isinstance(engine.scheduler, LengthAwareScheduler)
    plan = engine.scheduler.length_aware
    plan.calibrate([(1, 1.0), (12, 1.1)], engine.scheduler._engine.limits(), 8, 1e-3, None)
    for i in range(40):
        engine.add(str(i), [1 + i % 4] * (60 - length // 2), 1)
        engine.scheduler.requests[str(i)].status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    prompt = [1 + i % 4 for i in range(length)]
    engine.add("late", prompt, 1)
    engine.run(60)
    assert engine.generated["late"] == expected(prompt, 1)
