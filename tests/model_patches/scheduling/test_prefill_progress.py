"""What an engine tells of its prompts, and the seconds of prefill that it reports to routers."""

import pytest
from vllm.v1.request import RequestStatus

from ropeswitch.model_patches.scheduling.scheduler import LengthAwareScheduler
from ropeswitch.model_patches.scheduling.step_cost import STEP, Load, chunk
from ropeswitch.model_patches.scheduling.step_times import prefill_progress
from tests.model_patches.hash_engine import Engine, Start

PROMPT = [1 + i % 7 for i in range(30)]
SHORT = [2, 3, 4]


def remaining(engine: Engine) -> float:
    scheduler = engine.scheduler
    assert isinstance(scheduler, LengthAwareScheduler)
    return scheduler.length_aware.report(scheduler.running)["remaining_prefill_seconds"]


def at_least(engine: Engine, *parts: Load) -> float:
    """The predicted seconds of chunks, without the fixed cost of a step."""
    assert isinstance(engine.scheduler, LengthAwareScheduler)
    cost = engine.scheduler.length_aware.cost
    return sum(cost.seconds(part) for part in parts)


@pytest.mark.parametrize("name", ["v1", "v2-async", "v1-upstream-order"])
def test_a_prompt_is_told_step_by_step(start: Start, name: str) -> None:
    engine = start(name)
    engine.add("first", PROMPT, 4)
    reports = [prefill_progress(engine.scheduler, ["first", "unknown"])]
    while engine.scheduler.has_requests():
        engine.step()
        reports.append(prefill_progress(engine.scheduler, ["first", "unknown"]))
    computed = [each["first"][0] for each in reports if each]
    assert computed[0] == 0 and 0 < computed[1] < len(PROMPT) and computed[-1] == len(PROMPT)
    assert computed == sorted(computed)
    assert reports[-1] == {} and all(each["first"][1] == 0 for each in reports if each)


def test_what_the_cache_held_is_told_apart(start: Start) -> None:
    engine = start("v2-async")
    engine.add("first", PROMPT, 4)
    engine.finish()
    engine.add("second", PROMPT, 4)
    # The step's result is not back yet, and so neither is the first token.
    engine.step()
    processed, cached, _ = prefill_progress(engine.scheduler, ["second"])["second"]
    assert len(PROMPT) // 2 < cached < processed <= len(PROMPT)


def test_the_seconds_of_the_rest_are_predicted_once_steps_were_measured(start: Start) -> None:
    """By the engine's own clock: alone, and next to a decoding request."""
    engine = start("v1")

    def seconds(name: str) -> float | None:
        return prefill_progress(engine.scheduler, [name], True)[name][2]

    engine.add("0", [0, *PROMPT], 4)
    assert seconds("0") is None
    for number in range(1, 4):
        engine.finish()
        engine.add(str(number), [number, *PROMPT], 4)
    for beside in (None, "decoding"):
        engine.step()
        predicted, start = seconds("3"), engine.now
        assert predicted is not None and predicted > 0
        while seconds("3"):
            engine.step()
        assert predicted == pytest.approx(engine.now - start, rel=0.25), beside
        engine.finish()
        engine.add("decoding", [9], 40)
        engine.step()
        engine.step()
        engine.add("3", [8, *PROMPT], 4)


def test_an_engine_that_plans_by_no_model_predicts_nothing(start: Start) -> None:
    engine = start("v1-upstream-order")
    engine.add("first", PROMPT, 4)
    while engine.scheduler.has_requests():
        engine.step()
        assert [each[2] for each in prefill_progress(engine.scheduler, ["first"], True).values()] in ([None], [])


@pytest.mark.parametrize("name", ["v1", "v2-async"])
def test_it_is_the_work_that_is_left(start: Start, name: str) -> None:
    engine = start(name)
    assert remaining(engine) == 0
    engine.add("long", PROMPT, 2)
    alone = remaining(engine)
    work, fixed = at_least(engine, chunk(len(PROMPT), 0)), at_least(engine, STEP)
    assert work + fixed <= alone <= work + fixed * len(PROMPT)
    engine.add("short", SHORT, 2)
    assert remaining(engine) - alone >= at_least(engine, chunk(len(SHORT), 0)) - 1e-9
    found = [remaining(engine)]
    while engine.scheduler.has_requests():
        engine.step()
        found.append(remaining(engine))
    assert found[-1] == 0 and len(set(found)) > 2
    # A chunk that is planned counts as computed, so it falls while the prompts run, and decoding counts for nothing.
    assert found.index(0) < len(found) - 1


def test_neither_aborted_requests_nor_what_the_prefix_cache_holds_is_left(start: Start) -> None:
    engine = start("v1")
    engine.add("first", PROMPT, 1)
    full = remaining(engine)
    engine.finish()
    engine.add("again", PROMPT, 1)
    assert 0 < remaining(engine) < 0.7 * full, (remaining(engine), full)
    engine.step()
    engine.add("waiting", PROMPT[::-1], 2)
    assert remaining(engine) > 0
    engine.scheduler.finish_requests(["again", "waiting"], RequestStatus.FINISHED_ABORTED)
    assert remaining(engine) == 0
