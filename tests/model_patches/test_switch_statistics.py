"""The first output after a switch of factor sets tells how much of the sequence was computed again."""

from typing import Any

import pytest
from vllm.v1.metrics.stats import PrefillStats

from tests.exactness.engines import preemptions
from tests.model_patches.hash_engine import LADDER, MODES, Engine, Start

pytestmark = pytest.mark.usefixtures("looks_at_every_step")
NAMES = ("v1", "v2-async", "v2-async-pipeline", "v1-async-ngram", "v1-upstream-order")
PROMPT, GENERATED = 3, 40
ENDS = [each.max_length for each in LADDER.sets if each.max_length < PROMPT + GENERATED]


def reported(engine: Engine, names: list[str]) -> dict[str, list[PrefillStats]]:
    """Run the engine and collect the prefill statistics of every output, by request."""
    found: dict[str, list[PrefillStats]] = {name: [] for name in names}
    upstream = engine.scheduler.update_from_output

    def update(*args: Any) -> Any:
        outputs = upstream(*args)
        for one in (one for each in outputs.values() for one in each.outputs):
            if one.prefill_stats is not None:
                assert one.new_token_ids
                found[one.request_id].append(one.prefill_stats)
        return outputs

    engine.scheduler.update_from_output = update  # type: ignore[method-assign]
    engine.run(300)
    assert all(len(engine.generated[name]) == GENERATED for name in names)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_switch_tells_what_it_computes_again(start: Start, name: str) -> None:
    engine = start(name, 40)
    engine.add("stream", [1] * PROMPT, GENERATED)
    engine.add("forced", [2] * PROMPT, GENERATED, LADDER.names[-1], None)
    found = reported(engine, ["stream", "forced"])
    assert [each.num_prompt_tokens for each in found["forced"]] == [PROMPT]
    assert [each.num_prompt_tokens for each in found["stream"]] == [PROMPT, *ENDS]
    for each in found["stream"]:
        assert each.num_computed_tokens + each.num_cached_tokens == each.num_prompt_tokens
    cached = sum(each.num_cached_tokens for each in found["stream"])
    # Without length-aware scheduling nothing is prefilled in the background, and no one else says the same.
    if MODES[name].length_aware:
        assert cached > 0
    else:
        assert cached == 0


@pytest.mark.parametrize("name", ["v1", "v2-async"])
def test_a_cache_so_small_that_requests_are_preempted(start: Start, name: str) -> None:
    """A preemption is no switch; one during which a stream's last token takes it past its set is reported as any other."""
    engine = start(name, 19)
    names = ["a", "b", "c"]
    preempted = preemptions(engine.scheduler)
    for number, each in enumerate(names):
        engine.add(each, [1 + number] * PROMPT, GENERATED)
    found = reported(engine, names)
    assert len(preempted) > len(names) * len(ENDS), "nothing was preempted but by switches"
    for each in names:
        assert [stats.num_prompt_tokens for stats in found[each]] == [PROMPT, *ENDS]
