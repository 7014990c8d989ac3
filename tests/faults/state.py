"""The metrics of a server, and a wait until it has no unfinished request."""

import time
from collections import defaultdict

from tests.faults.conftest import MODEL
from tests.server.observed import scrape
from tests.server.running import Server

UNFINISHED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "ropeswitch_queued_requests",
)


def metrics(server: Server) -> dict[str, float]:
    """Every sample of ``/metrics`` by its name, summed over its labels; ``name{outcome}`` for those that have one."""
    found: dict[str, float] = defaultdict(float)
    for (name, labels), value in scrape(server, "").items():
        outcome = dict(labels).get("outcome")
        for each in (name, f"{name}{{{outcome}}}") if outcome else (name,):
            found[each] += value
    return found


def settle(server: Server, seconds: float = 30) -> None:
    """Wait until nothing runs, waits or holds keys and values."""
    deadline = time.monotonic() + seconds
    while True:
        # The gauges are brought up to date by the steps of an engine.
        answer = server.post("/v1/completions", {"model": MODEL, "prompt": [5], "max_tokens": 1})
        assert answer.status == 200, answer.text
        found = metrics(server)
        if not any(found[name] for name in UNFINISHED):
            return
        assert time.monotonic() < deadline, {name: found[name] for name in UNFINISHED}
        time.sleep(0.2)
