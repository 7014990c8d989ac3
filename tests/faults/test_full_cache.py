"""A KV cache that is full for half a minute: requests wait and are recomputed, and every answer is the one it is alone."""

import time
from pathlib import Path

import pytest

from tests.faults.beside import asked, unharmed
from tests.faults.conftest import FLAGS
from tests.faults.state import metrics, settle
from tests.passkey_tiny import SERVED
from tests.server.running import running

# One and a half sequences of the longest.
CACHE = ["--kv-cache-memory-bytes", str(3 << 20)]
CLIENTS = 12
SECONDS = 25
BODIES = tuple(
    asked(step, length, tokens)
    for step, length, tokens in ((1, 240, 200), (2, 500, 100), (3, 30, 300), (4, 900, 60), (5, 250, 20), (6, 100, 170))
)


@pytest.mark.full
def test_a_full_cache_changes_no_answer_and_loses_no_request(tmp_path: Path) -> None:
    usage: list[float] = []
    with running(tmp_path, *SERVED, *FLAGS, *CACHE) as crowded:
        with unharmed(crowded, BODIES, CLIENTS):
            before = metrics(crowded)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(0.5)
                usage.append(metrics(crowded)["vllm:kv_cache_usage_perc"])
        settle(crowded)
        after = metrics(crowded)
    assert sorted(usage)[len(usage) // 2] > 0.8, "the cache was not full"
    assert after["vllm:num_preemptions_total"] > before["vllm:num_preemptions_total"]
