"""What a server has in hand, by its own metrics and by what the kernel knows of its processes."""

import time
from contextlib import suppress
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Held:
    """What a process holds: resident memory in bytes, open files, threads."""

    memory: int
    files: int
    threads: int


def held(server: Server) -> dict[str, Held]:
    """By the role of each process: the command's, with the API server in it, the engine's, its worker's."""
    found = {"api": _held(psutil.Process(server.process.pid))}
    for each in processes(server):
        # A process may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            title = " ".join(each.cmdline()).strip()
            if title.startswith("VLLM::"):
                found[title] = _held(each)
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= found.keys()
    return found


def _held(process: psutil.Process) -> Held:
    return Held(process.memory_info().rss, process.num_fds(), process.num_threads())
