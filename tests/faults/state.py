"""What a server has in hand, by its own metrics and by what the kernel knows of its processes."""

import time
from contextlib import suppress

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.conftest import MODEL
from tests.server.asking import processes
from tests.server.running import Server

IN_HAND = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "ropeswitch_queued_requests",
)


def metrics(server: Server) -> dict[str, float]:
    """Every sample of ``/metrics`` by its name, summed over its labels; ``name{outcome}`` for those that have one."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples:
            outcome = sample.labels.get("outcome")
            for name in (sample.name, f"{sample.name}{{{outcome}}}") if outcome else (sample.name,):
                found[name] = found.get(name, 0) + sample.value
    return found


def series(server: Server) -> set[str]:
    """The samples of ``/metrics``: their names with their labels."""
    lines = server.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")}


def settle(server: Server, seconds: float = 30) -> None:
    """Wait until nothing runs, waits or holds keys and values."""
    deadline = time.monotonic() + seconds
    while True:
        # The gauges are brought up to date by the steps of an engine.
        answer = server.post("/v1/completions", {"model": MODEL, "prompt": [5], "max_tokens": 1})
        assert answer.status == 200, answer.text
        found = metrics(server)
        if not any(found[name] for name in IN_HAND):
            return
        assert time.monotonic() < deadline, {name: found[name] for name in IN_HAND}
        time.sleep(0.2)


def held(server: Server) -> dict[str, tuple[int, int, int]]:
    """Resident memory in bytes, open files and threads of the command with its API server, the engine and its worker."""
    found = {"api": _held(psutil.Process(server.process.pid))}
    for each in processes(server):
        # A process may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            title = " ".join(each.cmdline()).strip()
            if title.startswith("VLLM::"):
                found[title] = _held(each)
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= found.keys()
    return found


def _held(process: psutil.Process) -> tuple[int, int, int]:
    return process.memory_info().rss, process.num_fds(), process.num_threads()
