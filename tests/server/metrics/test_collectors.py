"""Our metrics expose the same series from one process and from several."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from ropeswitch.server.metrics.length_metrics import LengthCounter, LengthHistogram
from ropeswitch.server.metrics.queue_metrics import DROPPED, REQUESTS, TOKENS
from tests.server.metrics.ladders import total, values


def test_one_process_tells_no_more_than_several() -> None:
    registry = CollectorRegistry()
    LengthCounter("ropeswitch_x_total", "X.", registry=registry).inc()
    LengthHistogram("ropeswitch_y", "Y.", buckets=(0.1, 1.0), registry=registry).observe(1)
    assert "_created" not in generate_latest(registry).decode()


def test_several_processes_are_summed_and_none_counts_twice(tmp_path: Path) -> None:
    """As vLLM runs several API servers: each fills its own files in a folder, and whichever is asked reads all of them."""
    code = """if True:
        import sys
        from prometheus_client import CollectorRegistry, generate_latest, multiprocess
        from ropeswitch.server.metrics.length_metrics import LengthMetrics
        from tests.server.metrics.ladders import ladder

        metrics = LengthMetrics(ladder(256, 1024), "m")
        for engine in (0, 1):
            metrics.add_later(engine, (0, 0), [0.05, 0.05], 2)
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


PROCESS = """if True:
    import sys
    from types import SimpleNamespace
    from prometheus_client import CollectorRegistry
    from ropeswitch.server.front.context import RequestContext, current
    from ropeswitch.server.front.limits.queue_limits import Admission, LengthClass
    from ropeswitch.server.metrics.queue_metrics import queue_gauges

    classes = [LengthClass(name, 9, 99) for name in ("short", "long", "empty")]
    queue, context = Admission(classes, 9, 99, lambda _: True), RequestContext()
    current.set(context)
    queue.admit(9, 0, 1, "ended")
    refresh = queue_gauges(queue, "m", SimpleNamespace(value=7), CollectorRegistry())
    refresh()
    queue.look()
    queue._waits = lambda _: False
    queue.look()
    queue.admit(int(sys.argv[1]), 0, 2, "a")
    queue.admit(9, 1, 1, "b")
    refresh()
    print("set", flush=True)
    sys.stdin.read()
"""


def test_what_waits_in_each_length_class_is_summed_over_the_processes_that_live(tmp_path: Path) -> None:
    both = []
    for tokens in ("5", "7"):
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, tokens], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        )  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "set\n"
        both.append(process)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))

    def read(name: str) -> list[float | None]:
        labels = ({"model_name": "m", "length_class": each} for each in ("short", "long", "empty"))
        return [registry.get_sample_value(name, each) for each in labels]

    assert read(REQUESTS[0]) == [4, 2, 0] and read(TOKENS[0]) == [24, 18, 0]
    assert registry.get_sample_value(DROPPED[0], {"model_name": "m"}) == 7
    for process in both:
        process.communicate()
        mark_process_dead(process.pid, str(tmp_path))
    assert read(REQUESTS[0]) == read(TOKENS[0]) == [None] * 3
