"""The histogram that takes many values at once counts as Prometheus's own does, in one process and in several."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ropeswitch.server.metrics.collectors import StepCounter, StepHistogram
from tests.server.length_metrics.ladders import read, total, values

ENDS = (0.1, 1.0, 10.0)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.2, 1.0, 5.0, 10.0, 11.0]), min_size=1), min_size=1))
def test_many_at_once_are_the_same_as_one_by_one(steps: list[list[float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    at_once = StepHistogram("ropeswitch_x", "X.", ["a"], buckets=ENDS, registry=ours).labels("b")
    one_by_one = Histogram("ropeswitch_x", "X.", ["a"], buckets=ENDS, registry=theirs).labels("b")
    for step in steps:
        at_once.add(*step)
        for each in step:
            one_by_one.observe(each)
    found, expected = read(ours), read(theirs)
    assert len(found) == 6
    for key, value in found.items():
        assert abs(value - expected[key]) < 1e-9


def test_when_a_series_was_made_is_not_told() -> None:
    registry = CollectorRegistry()
    StepCounter("ropeswitch_x_total", "X.", registry=registry).inc()
    StepHistogram("ropeswitch_y", "Y.", buckets=ENDS, registry=registry).add(1)
    assert "_created" not in generate_latest(registry).decode()
    theirs = CollectorRegistry()
    Counter("ropeswitch_x_total", "X.", registry=theirs).inc()
    assert "_created" in generate_latest(theirs).decode()


def test_several_processes_are_summed_and_none_counts_twice(tmp_path: Path) -> None:
    """As vLLM runs several API servers: each fills its own files in a folder, and whichever is asked reads all of them."""
    code = """if True:
        import sys
        from prometheus_client import CollectorRegistry, generate_latest, multiprocess
        from ropeswitch.server.metrics.length_metrics import LengthMetrics, Step
        from tests.server.length_metrics.ladders import ladder

        metrics = LengthMetrics(ladder(256, 1024), "m")
        for engine in (0, 1):
            step = Step()
            step.later.append(((0, 0), [0.05, 0.05], 2))
            metrics.add_step(step, engine)
        metrics.count_rejection("invalid")
        for _ in range(2):  # being asked changes nothing
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)
            text = generate_latest(registry).decode()
        print(text)
    """
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for servers in (1, 2, 3):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found = values(done.stdout)
        for engine in ("0", "1"):
            assert total(found, "ropeswitch_generated_tokens_total", engine=engine) == 2 * servers
            assert total(found, "ropeswitch_inter_token_latency_seconds_count", engine=engine) == 2 * servers
        assert total(found, "ropeswitch_requests_total", outcome="rejected") == servers
