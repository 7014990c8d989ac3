"""The next set's keys in the background: the switch finds them, nothing else is disturbed, and nothing is left behind."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import RequestStatus

from ropeswitch.model_patches.scheduling.scheduler import LengthAwareScheduler
from ropeswitch.model_patches.switch.engine.scheduler import LadderSchedulerOutput
from tests.model_patches.hash_engine import BLOCK, DRAFTS, Engine, expected

pytestmark = pytest.mark.usefixtures("looks_at_every_step")
PROMPT = [1, 2, 3, 4]
Start = Callable[..., "Watched"]


class Watched(Engine):
    """Notes what every step was given."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: list[dict[str, int]] = []
        self.switches: list[int] = []

    def forward(self, output: LadderSchedulerOutput) -> Any:
        self.steps.append(dict(output.num_scheduled_tokens))
        placed = {name: count for name, count in output.num_scheduled_tokens.items() if name in output.rope_sets}
        self.switches += [count for name, count in placed.items() if name == "stream" and len(self.steps) > 1]
        return super().forward(output)

    @property
    def internal(self) -> list[str]:
        return [name for name in self.scheduler.requests if "next-set" in name]

    @property
    def ahead(self) -> int:
        assert isinstance(self.scheduler, LengthAwareScheduler)
        next_set = self.scheduler.length_aware.next_set
        return 0 if next_set is None else next_set.tokens


@pytest.fixture
def streaming(start: Start) -> Start:
    """Starts engines with a request that crosses three limits."""

    def start_engine(name: str, *args: Any, **changes: Any) -> Watched:
        engine = start(name, *args, kind=Watched, **changes)
        engine.add("stream", PROMPT, 45)
        return engine

    return start_engine


def test_a_switch_computes_only_the_last_tokens(streaming: Start) -> None:
    engine = streaming("v1")
    engine.run(120)
    assert engine.generated["stream"] == expected(PROMPT, 45)
    # From 10 to 11 tokens, to 22 and to 34; the first comes too soon after the start to be prepared.
    assert len(engine.switches) == 3 and all(count <= 2 * BLOCK for count in engine.switches[1:]), engine.switches
    assert engine.ahead > 20
    engine.check_empty()


def test_no_step_is_much_longer_for_it(streaming: Start) -> None:
    engine = streaming("v1")
    ends = []
    for _ in range(60):
        engine.step()
        ends.append(engine.now)
    gaps = [after - before for before, after in pairwise(ends)]
    busy = [gap for gap, step in zip(gaps, engine.steps[1:], strict=False) if len(step) > 1]
    plain = [gap for gap, step in zip(gaps, engine.steps[1:], strict=False) if step == {"stream": 1}]
    assert busy and max(busy) <= 4 * max(plain)


@pytest.mark.parametrize("name", ["v1", "v2-async", "v2-async-pipeline"])
@pytest.mark.parametrize("after", range(2, 40, 3))
def test_it_ends_with_its_stream(streaming: Start, name: str, after: int) -> None:
    engine = streaming(name)
    engine.run(after)
    engine.scheduler.finish_requests("stream", RequestStatus.FINISHED_ABORTED)
    engine.run(6)
    engine.check_empty()


def test_it_gives_way_to_whoever_waits(streaming: Start) -> None:
    """A request that waits has its prefill in the next step, and the internal one has no token in it."""
    engine = streaming("v1")
    while not engine.internal:
        engine.step()
    engine.add("short", [4, 3, 2, 1], 3)
    engine.step()
    assert engine.steps[-1] == {"stream": 1, "short": 4}


@pytest.mark.parametrize(("name", "prompt"), [("v1-ngram", [1] * 6), ("v2-async-ngram", PROMPT)])
def test_it_ends_when_it_lacks_too_few_tokens_for_a_chunk(start: Start, name: str, prompt: list[int]) -> None:
    """A chunk must have more tokens than a step has drafts; the switch computes those that are left."""
    engine, lacking = start(name), []
    assert isinstance(engine.scheduler, LengthAwareScheduler)
    engine.add("stream", prompt, 40)
    for _ in range(120):
        before = engine.scheduler.length_aware.background
        left = DRAFTS + 1 if before is None else before.num_tokens - 1 - before.num_computed_tokens
        engine.step()
        if left <= DRAFTS:
            lacking.append(left)
            assert engine.scheduler.length_aware.background is not before
    assert any(lacking), lacking
    assert engine.generated["stream"] == expected(prompt, 40)
    assert not engine.scheduler.requests


def test_it_is_off_without_a_prefix_cache(streaming: Start) -> None:
    engine = streaming("v1", prefix_caching=False)
    for _ in range(120):
        engine.step()
        assert not engine.internal
    assert engine.generated["stream"] == expected(PROMPT, 45)


def test_a_stream_with_an_image_has_none(streaming: Start) -> None:
    """The internal request would have the image's placeholder tokens but not the image."""
    engine = streaming("v1")
    engine.step()
    stream = engine.scheduler.requests["stream"]
    stream.mm_features = [MultiModalFeatureSpec(None, "image", "hash", PlaceholderRange(1, 2))]
    # Before the switch to the second set, which would compute the image again.
    while stream.num_tokens < 10:
        engine.step()
        assert not engine.internal
    # With the image gone, the next step would have started one.
    stream.mm_features = []
    engine.step()
    assert engine.internal


def test_it_holds_no_more_than_its_part_of_the_memory(streaming: Start) -> None:
    """Half of 17 blocks is not enough for a stream of 32 tokens and more."""
    engine, seen = streaming("v1", 17), False
    for _ in range(120):
        engine.step()
        seen = seen or bool(engine.internal)
        for name in engine.internal:
            (blocks,) = engine.scheduler.kv_cache_manager.get_block_ids(name)
            assert len(blocks) <= 17 // 2 + 1
    assert seen
    assert engine.generated["stream"] == expected(PROMPT, 45)


def test_counts_of_requests_leave_it_out(streaming: Start) -> None:
    engine = streaming("v1")
    engine.scheduler.log_stats = engine.scheduler.kv_cache_manager.log_stats = True
    engine.scheduler.kv_cache_manager.prefix_cache_stats = PrefixCacheStats()
    seen = False
    for _ in range(40):
        engine.step()
        stats = engine.scheduler.make_stats()
        assert stats is not None
        assert (stats.num_running_reqs, stats.num_waiting_reqs) == (1, 0)
        seen = seen or bool(engine.internal)
    assert seen


@pytest.mark.parametrize("name", ["v1", "v2-async"])
@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_a_pause_does_not_lose_the_stream(streaming: Start, name: str, state: PauseState) -> None:
    engine = streaming(name)
    while not engine.internal:
        engine.step()
    engine.scheduler.set_pause_state(state)
    engine.run(60)
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run(120)
    assert engine.generated["stream"] == expected(PROMPT, 45)
    engine.check_empty()
