"""A KV cache that is full for minutes: requests wait and are computed again, and every answer is the one it is alone."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.beside import tokens_of
from tests.faults.conftest import FLAGS, MODEL
from tests.faults.state import metrics, settle
from tests.passkey_tiny import SERVED
from tests.server.running import Server, running

# One and a half sequences of the longest. In float32 a key that is computed again, in another batch, is the same to within
# what no choice of a token depends on.
CACHE = ["--dtype", "float32", "--kv-cache-memory-bytes", str(3 << 20)]
CLIENTS = 12
SECONDS = 120
BODIES: tuple[dict[str, Any], ...] = tuple(
    {"model": MODEL, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": tokens}
    | {"prompt": [5 + (step * 7 + i) % 90 for i in range(length)]}
    for step, length, tokens in ((1, 240, 200), (2, 500, 100), (3, 30, 300), (4, 900, 60), (5, 250, 20), (6, 100, 170))
)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("crowded"), *SERVED, *FLAGS, *CACHE) as started:
        yield started


@pytest.mark.full
def test_a_full_cache_for_two_minutes(crowded: Server) -> None:
    alone = [tokens_of(crowded, body) for body in BODIES]
    settle(crowded)
    wrong: list[Any] = []
    answered = [0] * CLIENTS
    end = time.monotonic() + SECONDS

    def ask(client: int) -> None:
        at = client
        while time.monotonic() < end:
            try:
                if (found := tokens_of(crowded, BODIES[at % len(BODIES)])) != alone[at % len(BODIES)]:
                    wrong.append((BODIES[at % len(BODIES)], found))
            except (AssertionError, OSError) as error:
                wrong.append(error)
            answered[client] += 1
            at += 1

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
    before = metrics(crowded)
    for each in threads:
        each.start()
    usage: list[float] = []
    while time.monotonic() < end:
        time.sleep(0.5)
        usage.append(metrics(crowded)["vllm:kv_cache_usage_perc"])
    for each in threads:
        each.join(120)
        assert not each.is_alive(), "a request is lost"
    asked = settle(crowded) + sum(answered)
    after = metrics(crowded)
    assert not wrong, wrong[:2]
    assert min(answered) > 0
    assert sorted(usage)[len(usage) // 2] > 0.8, "the cache was not full"
    assert after["vllm:num_preemptions_total"] > before["vllm:num_preemptions_total"]
    ended = after["ropeswitch_requests_total"] - before["ropeswitch_requests_total"]
    assert ended == asked, (ended, asked)
    print(f"{sum(answered)} answers, {after['vllm:num_preemptions_total']:.0f} preemptions, usage {max(usage):.2f}")
