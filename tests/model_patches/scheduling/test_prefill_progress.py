"""What an engine tells of its prompts, on vLLM's own scheduler and requests."""

import pytest

from ropeswitch.model_patches.serving.part import prefill_progress
from tests.model_patches.hash_engine import Start

PROMPT = [1 + i % 7 for i in range(30)]


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
