"""Gauges of what waits: those of the moment that they are asked for, for every length class."""

import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.metrics.queue_metrics import DROPPED, REQUESTS, TOKENS, queue_gauges
from tests.server.front.parts import LADDER, parts


def test_they_follow_what_waits(tmp_path: Path) -> None:
    state, _admission = parts(tmp_path)
    registry = CollectorRegistry()
    lines = SimpleNamespace(value=7)
    refresh = queue_gauges(state.queue, "m", lines, registry)
    assert next(iter(registry.collect())).samples == []

    def read() -> list[tuple[float | None, float | None]]:
        refresh()
        labels = [{"model_name": "m", "length_class": name} for name in LADDER.names]
        return [
            (registry.get_sample_value(REQUESTS[0], each), registry.get_sample_value(TOKENS[0], each))
            for each in labels
        ]

    empty = [(0, 0)] * len(LADDER.names)
    assert read() == empty
    lengths = [each.max_length for each in LADDER.sets[:2]]
    context = RequestContext()
    token = current.set(context)
    state.queue.admit(lengths[0], 0, 2, "a")
    state.queue.admit(lengths[1], 1, 1, "b")
    current.reset(token)
    assert read()[:2] == [(2, 2 * lengths[0]), (1, lengths[1])]
    state.queue.end(context)
    assert read() == empty
    assert registry.get_sample_value(DROPPED[0], {"model_name": "m"}) == lines.value


PROCESS = """
import sys
from types import SimpleNamespace
from prometheus_client import CollectorRegistry
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.limits.queue_limits import Admission, LengthClass
from ropeswitch.server.metrics.queue_metrics import queue_gauges
queue = Admission([LengthClass("short", 5, 50)], 5, 50, lambda _: True)
current.set(RequestContext())
queue.admit(int(sys.argv[1]), 0, 1, "a")
queue_gauges(queue, "m", SimpleNamespace(value=3), CollectorRegistry())()
print("set", flush=True)
sys.stdin.read()
"""


def test_metrics_sum_over_processes(tmp_path: Path) -> None:
    """A third process, which counts nothing, shows what two others count, until they have ended."""
    command = [sys.executable, "-c", PROCESS]
    variables = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    both = []
    for tokens in ("5", "7"):
        process = Popen([*command, tokens], stdin=PIPE, stdout=PIPE, env=variables, text=True)
        assert process.stdout is not None and process.stdout.readline() == "set\n"
        both.append(process)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    labels = {"model_name": "m", "length_class": "short"}
    assert registry.get_sample_value(REQUESTS[0], labels) == 2
    assert registry.get_sample_value(TOKENS[0], labels) == 12
    for process in both:
        process.communicate()
        mark_process_dead(process.pid, str(tmp_path))
    assert registry.get_sample_value(TOKENS[0], labels) is None
