"""What the planner is shown, against a full recount at every step."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.engine import StepView
from ropeswitch.model_patches.scheduling.next_set import NextSetPrefill
from ropeswitch.model_patches.scheduling.scheduler import LengthAwareScheduler
from ropeswitch.model_patches.scheduling.step_cost import STEP, Load, chunk
from ropeswitch.model_patches.switch.engine import scheduler as switch_scheduler
from ropeswitch.model_patches.switch.engine.scheduler import LadderScheduler
from tests.exactness.batches import full_but
from tests.model_patches.hash_engine import LADDER, MODES, Start, drawing
from tests.model_patches.test_scheduler_properties import REQUESTS, play, resetting

pytestmark = pytest.mark.usefixtures("looks_at_every_step")


def recount(scheduler: LadderScheduler, background: Request | None) -> tuple[list[Request], Load]:
    """Prefills and load of the decodes, one request after the other."""
    load, prefills = STEP, []
    for request in scheduler.running:
        left = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
        if request is background:
            continue
        if request.is_prefill_chunk:
            prefills.append(request)
        elif left:
            load += chunk(left, request.num_computed_tokens)
    return prefills, load


LENGTH_AWARE = [name for name, mode in MODES.items() if mode.length_aware]


@pytest.mark.parametrize("mode", full_but(("v1", "v2-async"), LENGTH_AWARE))
@given(requests=REQUESTS, blocks=st.integers(17, 40), reset=st.sampled_from([None, None, *range(1, 30)]))
@drawing(40)
def test_the_view_is_a_recount(start: Start, mode: str, requests: Any, blocks: int, reset: int | None) -> None:
    engine = start(mode, blocks)
    scheduler = engine.scheduler
    assert isinstance(scheduler, LengthAwareScheduler)
    upstream = scheduler._engine.view

    def view(now: float, background: Request | None, idle: bool) -> StepView:
        seen = upstream(now, background, idle)
        assert (list(seen.prefills), seen.decodes) == recount(scheduler, background)
        computed = [each.num_computed_tokens for each in scheduler.running]
        assert not seen.in_order or computed == sorted(computed, reverse=True)
        return seen

    scheduler._engine.view = view  # type: ignore[method-assign]
    upstream_after = scheduler.length_aware.after_planning

    def after_planning(output: Any, *args: Any) -> None:
        upstream_after(output, *args)
        expected = STEP
        for name, count in output.num_scheduled_tokens.items():
            expected += chunk(count, scheduler.requests[name].num_computed_tokens - count)
        assert scheduler.length_aware._flights[-1][2] == expected

    scheduler.length_aware.after_planning = after_planning  # type: ignore[method-assign]
    play(engine, requests, resetting(engine, reset))


def test_what_is_kept_of_finished_requests_goes(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch_scheduler, "MOST_STEPS", 8)
    engine = start("v2-async", 40)
    anything = (0, (None, None), None)
    play(engine, [(30, 20, *anything, 0, None), (4, 20, *anything, 0, 5), (20, 9, *anything, 2, None)])
    scheduler = engine.scheduler
    assert isinstance(scheduler, LengthAwareScheduler)
    assert not scheduler.requests and not scheduler._draining and not scheduler._moved_up
    # A check that lies ahead is dropped when it is due.
    engine.add("last", [1] * 4, 50, LADDER.names[-1], None)
    engine.run(60)
    assert len(scheduler._due) <= 1
    assert set(scheduler.waiting._arrived) <= {scheduler.waiting.internal}


@pytest.mark.parametrize("mode", ["v1", "v2-async"])
@given(requests=REQUESTS, blocks=st.integers(17, 60))
@drawing(40)
def test_the_filter_loses_no_request_that_is_due(start: Start, mode: str, requests: Any, blocks: int) -> None:
    """All running requests that a full look finds due are among the near ones."""
    engine = start(mode, blocks)
    near = NextSetPrefill._near

    def check(self: NextSetPrefill, running: list[Request], busy: float) -> Any:
        found = list(near(self, running, busy))
        due = [each for each in running if self._worth(each) and self._due(each, busy)]
        assert all(each in found for each in due)
        return iter(found)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NextSetPrefill, "_near", check)
        play(engine, requests)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_hangs_on_requests(start: Start, mode: str) -> None:
    engine = start(mode, 40)
    engine.add("one", [1] * 8, 30)
    request = engine.scheduler.requests["one"]
    stock = set(vars(Request("stock", [1], request.sampling_params, None)))
    for _ in range(12):
        engine.step()
        for each in engine.scheduler.requests.values():
            assert set(vars(each)) == stock
