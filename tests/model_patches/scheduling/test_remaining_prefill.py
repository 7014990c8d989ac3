"""The seconds of prefill that an engine reports to routers, on vLLM's own scheduler and requests."""

import pytest
from vllm.v1.request import RequestStatus

from ropeswitch.model_patches.scheduling.scheduler import LengthAwareScheduler
from ropeswitch.model_patches.scheduling.step_cost import STEP, Load, chunk
from tests.model_patches.hash_engine import Engine, Start

LONG = [1 + i % 7 for i in range(30)]
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


@pytest.mark.parametrize("name", ["v1", "v2-async"])
def test_it_is_the_work_that_is_left(start: Start, name: str) -> None:
    engine = start(name)
    assert remaining(engine) == 0
    engine.add("long", LONG, 2)
    alone = remaining(engine)
    work, fixed = at_least(engine, chunk(len(LONG), 0)), at_least(engine, STEP)
    assert work + fixed <= alone <= work + fixed * len(LONG)
    engine.add("short", SHORT, 2)
    assert remaining(engine) - alone >= at_least(engine, chunk(len(SHORT), 0)) - 1e-9
    found = [remaining(engine)]
    while engine.scheduler.has_requests():
        engine.step()
        found.append(remaining(engine))
    assert found[-1] == 0 and len(set(found)) > 2
    # A chunk that is planned counts as computed, so it falls while the prompts run, and decoding counts for nothing.
    assert found.index(0) < len(found) - 1


def test_a_request_that_is_aborted_leaves_nothing(start: Start) -> None:
    engine = start("v1")
    engine.add("running", LONG, 2)
    engine.step()
    engine.add("waiting", LONG[::-1], 2)
    assert remaining(engine) > 0
    engine.scheduler.finish_requests(["running", "waiting"], RequestStatus.FINISHED_ABORTED)
    assert remaining(engine) == 0


def test_what_the_prefix_cache_holds_is_left_out(start: Start) -> None:
    engine = start("v1")
    engine.add("first", LONG, 1)
    full = remaining(engine)
    engine.finish()
    engine.add("again", LONG, 1)
    assert 0 < remaining(engine) < 0.7 * full, (remaining(engine), full)
