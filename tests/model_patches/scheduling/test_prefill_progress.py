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
    processed, cached = prefill_progress(engine.scheduler, ["second"])["second"]
    assert len(PROMPT) // 2 < cached < processed <= len(PROMPT)
