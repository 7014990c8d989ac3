"""How long steps are beside streams, after them, and where streams alone take more than the target."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from vllm.multimodal.inputs import PlaceholderRange

from ropeswitch.model_patches.scheduling.scheduler import LengthAwareScheduler
from ropeswitch.model_patches.scheduling.step_plan import Prefill, whole_items
from tests.model_patches.scheduling.conftest import TARGET
from tests.simulated import Arrival, Builder, Simulation, Step


def steps(builder: Builder, arrivals: list[Arrival], target: float = TARGET) -> tuple[Simulation, list[Step]]:
    """Simulate, and give every step; requests are named by their place in ``arrivals``."""
    simulation = builder.simulation("ours", arrivals, target=target)
    seen: list[Step] = []
    simulation.watch = seen.append
    simulation.run()
    return simulation, seen


def test_alone_a_long_prompt_gets_the_whole_budget(builder: Builder) -> None:
    simulation, seen = steps(builder, [Arrival(0.0, 300_000, 1)])
    budget = simulation.scheduler.scheduler_config.max_num_batched_tokens
    assert all(step.tokens == {"0": budget} for step in seen[:-1])


def test_after_a_stream_steps_grow_as_the_quiet_lasts(builder: Builder) -> None:
    """An arrival pays at most a tenth of the quiet before it, or the target."""
    _, seen = steps(builder, [Arrival(0.0, 2_000_000, 1), Arrival(0.0, 100, 600)])
    last = max(step.start + step.seconds for step in seen if "1" in step.tokens)
    later = [step for step in seen if step.start >= last][:-1]
    for step in later:
        assert step.seconds <= 1.5 * max(TARGET, 0.1 * (step.start - last))
    assert later[-1].seconds > 3 * TARGET


def test_beside_a_stream_no_chunk_is_twice_as_long_as_the_last(builder: Builder) -> None:
    """The model's first idea of a step may be far off."""
    _, seen = steps(builder, [Arrival(0.0, 100, 4000), Arrival(0.5, 200_000, 1)], target=0.2)
    chunks = [step.tokens["1"] for step in seen if "1" in step.tokens and "0" in step.tokens]
    assert chunks[0] <= 128 and max(chunks) > 1024
    assert all(after <= 2 * before for before, after in pairwise(chunks))


def test_streams_that_take_longer_than_the_target_leave_a_prefill_its_part(builder: Builder) -> None:
    """Half of the streams' own time, so that they are slowed by no more than that."""
    streams = [Arrival(0.0, 1000, 2000) for _ in range(100)]
    _, seen = steps(builder, [*streams, Arrival(5.0, 100_000, 1)], target=0.005)
    before = [step for step in seen if step.start < 5.0 and len(step.tokens) == 100 and max(step.tokens.values()) == 1]
    beside = [step for step in seen if "100" in step.tokens and len(step.tokens) == 101]
    alone = before[-1].seconds
    assert alone > 0.005 and len(beside) > 10
    assert all(1.2 * alone < step.seconds < 1.8 * alone for step in beside[5:-1])


@pytest.mark.parametrize(
    ("before", "count", "most", "expected"),
    [
        (0, 64, 8192, 64),  # ends before the first image
        (0, 110, 8192, 356),  # ends in it
        (0, 110, 200, 100),  # no room for it
        (100, 128, 8192, 256),  # starts at it
        (100, 16, 8192, 256),
        (0, 356, 8192, 356),  # ends at its end
        (90, 700, 8192, 910),  # ends in the second
        (1000, 16, 8192, 16),  # after both
    ],
)
def test_a_chunk_ends_in_no_image(before: int, count: int, most: int, expected: int) -> None:
    """Where the model's images attend to all of themselves; two images of 256 tokens, at 100 and 744."""
    places = [PlaceholderRange(offset=at, length=256) for at in (100, 744)]
    request = Mock(mm_features=[SimpleNamespace(mm_position=place) for place in places])
    prefill = Prefill((0, 0, 0), request, 2000 - before, before, False)
    assert whole_items(prefill, count, most) == expected


def test_beside_streams_a_chunk_holds_a_whole_image(builder: Builder) -> None:
    """Otherwise the first chunk has at most 128 tokens."""
    simulation = builder.simulation("ours", (), target=TARGET)
    plan = cast(LengthAwareScheduler, simulation.scheduler).length_aware._plan
    plan._limits, plan._last_urgent = replace(plan._limits, whole_items=True), plan._now
    image = SimpleNamespace(mm_position=PlaceholderRange(offset=0, length=256))
    prefill = Prefill((0, 0, 0), Mock(mm_features=[image]), 200_000, 0, False)
    assert plan._fill(iter([prefill]), TARGET, 8192) == [(prefill, 256)]
