"""Our counters and histograms expose the same series from one process and from several."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from ropeswitch.server.metrics.length_metrics import LengthCounter, LengthHistogram
from tests.server.length_metrics.ladders import total, values


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
        from tests.server.length_metrics.ladders import ladder

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
