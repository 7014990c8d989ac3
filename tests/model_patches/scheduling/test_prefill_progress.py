"""What an engine tells of its prompts, on vLLM's own scheduler and requests."""

from collections.abc import Callable

import pytest
from vllm.config import VllmConfig

from ropeswitch.model_patches.serving.part import prefill_progress
from tests.model_patches.hash_engine import MODES, Engine, Mode

PROMPT = [1 + i % 7 for i in range(30)]


@pytest.mark.parametrize("name", ["v1", "v2-async", "v1-upstream-order"])
def test_a_prompt_is_told_step_by_step(configs: Callable[[Mode], VllmConfig], name: str) -> None:
    engine = Engine(configs(MODES[name]), MODES[name], 60)
    engine.add("first", PROMPT, 4, None, None)
    reports = [prefill_progress(engine.scheduler, ["first", "unknown"])]
    while engine.scheduler.has_requests():
        engine.step()
        reports.append(prefill_progress(engine.scheduler, ["first", "unknown"]))
    computed = [each["first"][0] for each in reports if each]
    assert computed[0] == 0 and 0 < computed[1] < len(PROMPT) and computed[-1] == len(PROMPT)
    assert computed == sorted(computed)
    assert reports[-1] == {} and all(each["first"][1] == 0 for each in reports if each)


def test_what_the_cache_held_is_told_apart(configs: Callable[[Mode], VllmConfig]) -> None:
    engine = Engine(configs(MODES["v2-async"]), MODES["v2-async"], 60)
    engine.add("first", PROMPT, 4, None, None)
    while engine.scheduler.has_requests():
        engine.step()
    engine.add("second", PROMPT, 4, None, None)
    # The step's result is not back yet, and so neither is the first token.
    engine.step()
    processed, cached, _ = prefill_progress(engine.scheduler, ["second"])["second"]
    assert len(PROMPT) // 2 < cached < processed <= len(PROMPT)


def test_the_seconds_of_the_rest_are_predicted_once_steps_were_measured(configs: Callable[[Mode], VllmConfig]) -> None:
    """By the engine's own clock: alone, and next to a decoding request."""
    engine = Engine(configs(MODES["v1"]), MODES["v1"], 60)

    def seconds(name: str) -> float | None:
        return prefill_progress(engine.scheduler, [name], True)[name][2]

    engine.add("0", [0, *PROMPT], 4, None, None)
    assert seconds("0") is None
    for number in range(1, 4):
        while engine.scheduler.has_requests():
            engine.step()
        engine.add(str(number), [number, *PROMPT], 4, None, None)
    for beside in (None, "decoding"):
        engine.step()
        predicted, start = seconds("3"), engine.now
        assert predicted is not None and predicted > 0
        while seconds("3"):
            engine.step()
        assert predicted == pytest.approx(engine.now - start, rel=0.25), beside
        while engine.scheduler.has_requests():
            engine.step()
        engine.add("decoding", [9], 40, None, None)
        engine.step()
        engine.step()
        engine.add("3", [8, *PROMPT], 4, None, None)


def test_an_engine_that_plans_by_no_model_predicts_nothing(configs: Callable[[Mode], VllmConfig]) -> None:
    engine = Engine(configs(MODES["v1-upstream-order"]), MODES["v1-upstream-order"], 60)
    engine.add("first", PROMPT, 4, None, None)
    while engine.scheduler.has_requests():
        engine.step()
        assert [each[2] for each in prefill_progress(engine.scheduler, ["first"], True).values()] in ([None], [])
