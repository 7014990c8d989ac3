"""Our metrics expose the same series from one process and from several."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from ropeswitch.server.metrics.queue_metrics import DROPPED, REQUESTS, TOKENS
from ropeswitch.server.metrics.scheduling_metrics import GAUGES
from tests.server.metrics.ladders import total, values

PROCESS = """if True:
    import asyncio, sys
    from types import SimpleNamespace
    from prometheus_client import CollectorRegistry, generate_latest, multiprocess
    from ropeswitch.server.front.context import RequestContext, current
    from ropeswitch.server.front.limits.queue_limits import Admission, LengthClass
    from ropeswitch.server.metrics.length_metrics import LengthMetrics
    from ropeswitch.server.metrics.queue_metrics import queue_gauges
    from ropeswitch.server.metrics.scheduling_metrics import GAUGES, SchedulingMetrics
    from tests.server.metrics.ladders import ladder

    metrics = LengthMetrics(ladder(256, 1024), "m")
    for engine in (0, 1):
        metrics.add_later(engine, (0, 0), [0.05, 0.05], 2)
    metrics.count_rejection("invalid")
    classes = [LengthClass(name, 9, 99) for name in ("short", "long", "empty")]
    queue = Admission(classes, 9, 99, lambda _: False)
    current.set(RequestContext())
    refresh = queue_gauges(queue, "m", SimpleNamespace(value=7), CollectorRegistry())
    queue.admit(9, 0, 1, "computed")
    refresh()
    queue.look()
    queue.admit(5, 0, 2, "a")
    queue.admit(9, 1, 1, "b")
    refresh()
    async def report():
        return dict.fromkeys(GAUGES, float(sys.argv[1]))
    asyncio.run(SchedulingMetrics({0: report}, "m").refresh())
    for _ in range(2):  # being asked changes nothing
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        text = generate_latest(registry).decode()
    print(text + "END", flush=True)
    sys.stdin.read()
"""


def test_processes_are_summed_and_none_counts_twice_nor_waits_after_its_end(tmp_path: Path) -> None:
    """As vLLM runs several API servers: each fills its own files in a folder, and whichever is asked reads all of them."""
    started = []
    for servers in (1, 2, 3):
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(9 - servers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        found = values("".join(iter(process.stdout.readline, "END\n")))
        for engine in ("0", "1"):
            assert total(found, "ropeswitch_generated_tokens_total", engine=engine) == 2 * servers
            assert total(found, "ropeswitch_inter_token_latency_seconds_count", engine=engine) == 2 * servers
        assert total(found, "ropeswitch_requests_total", outcome="rejected") == servers
        waiting = [(2 * servers, 10 * servers), (servers, 9 * servers), (0, 0)]
        for name, expected in zip(("short", "long", "empty"), waiting, strict=True):
            assert tuple(total(found, each[0], length_class=name) for each in (REQUESTS, TOKENS)) == expected
        assert total(found, DROPPED[0]) == 7
        # All ask the same engines, so the latest answer counts.
        assert [total(found, name, engine="0") for name, _ in GAUGES.values()] == [9 - servers] * len(GAUGES)
    for process in started:
        process.communicate()
        mark_process_dead(process.pid, str(tmp_path))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    assert registry.get_sample_value(REQUESTS[0], {"model_name": "m", "length_class": "short"}) is None
