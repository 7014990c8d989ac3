"""Ten thousand requests of all kinds, many abandoned, harm no other client and leave nothing behind."""

import asyncio
import random
import time
from collections import Counter
from typing import Any

import httpx2
import psutil
import pytest

from tests.faults.beside import unharmed
from tests.faults.conftest import MODEL
from tests.faults.state import metrics, settle
from tests.server.asking import named
from tests.server.observed import scrape
from tests.server.running import Server

WARM_UP = 2000
REQUESTS = 10_000
ROUNDS = 4
AT_ONCE = 24
# What 8,000 requests may add to a process: a KiB each, where one that leaked its prompt or its answer would leave several,
# two files and a thread. Pools, caches and the allocator's arenas have grown in the warm-up.
MOST_GROWTH = ((REQUESTS - WARM_UP) * 1024, 2, 1)
# A worker's arenas vary by up to 23 MB; after 28,000 requests they had grown by 5 MB.
MOST_OF_WORKER = (4 * MOST_GROWTH[0], *MOST_GROWTH[1:])
FEW = 64
OUTCOMES = "ropeswitch_requests_total{{{}}}"
CHAT = {"messages": [{"role": "user", "content": "The pass key is 12."}], "max_tokens": 1}
# With the weight of each in the draw.
KINDS: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (5, "/v1/completions", {"prompt": "The grass is green.", "max_tokens": 1}),
    (3, "/v1/chat/completions", CHAT),
    (2, "/v1/chat/completions", CHAT | {"stream": True, "max_tokens": 2}),
    (2, "/v1/completions", {"prompt": [5] * 255, "max_tokens": 2, "ignore_eos": True}),
    (1, "/v1/completions", {"prompt": [6] * 300, "max_tokens": 400, "ignore_eos": True, "stream": True}),
    # Its seventh token is computed in the next factor set.
    (1, "/v1/completions", {"prompt": [7] * 250, "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}),
    (1, "/v1/completions", {"prompt": [[8] * 1000] * 4, "max_tokens": 3, "ignore_eos": True}),
    (1, "/v1/responses", {"input": "a", "max_output_tokens": 1}),
    (1, "/tokenize", {"prompt": "a"}),
    (1, "/v1/completions", {"prompt": "a", "temperature": -1}),
    (1, "/v1/completions", {"prompt": [5] * 2000}),
    (1, "/v1/completions", {"prompt": "a", "vllm_xargs": {"rope_factor_set": "none"}}),
    (1, "/v1/chat/completions", {"messages": "no list"}),
    (1, "/nothing", {}),
)


async def send(server: Server, count: int, rng: random.Random) -> Counter[str]:
    """Send so many requests, a few at once; of those that would last, and of some others, the clients leave."""
    gate = asyncio.Semaphore(AT_ONCE)
    fates: Counter[str] = Counter()

    async def one(client: httpx2.AsyncClient) -> None:
        _, path, body = rng.choices(KINDS, [kind[0] for kind in KINDS])[0]
        patience = rng.choice([0.005, 0.02, 0.1]) if body.get("max_tokens", 1) > 2 or rng.random() < 0.05 else 120
        async with gate:
            try:
                answer = await asyncio.wait_for(client.post(path, json=body | {"model": MODEL}), patience)
                fate = str(answer.status_code)
            except TimeoutError:
                fate = "left"
        fates[fate] += 1

    # The server closes a connection that was idle for 5 s, which may be when a request is on its way.
    limits = httpx2.Limits(keepalive_expiry=2)
    async with httpx2.AsyncClient(base_url=server.url, timeout=130, limits=limits) as client:
        await asyncio.gather(*(one(client) for _ in range(count)))
    return fates


@pytest.mark.full
def test_ten_thousand_requests_harm_no_other_client_and_leave_nothing(server: Server) -> None:
    rng = random.Random(5)
    for _, path, body in KINDS:
        server.post(path, body | {"model": MODEL})
    asyncio.run(send(server, WARM_UP, rng))
    before, counted, samples = at_rest(server), metrics(server), scrape(server, "").keys()
    fates: Counter[str] = Counter()
    for _ in range(ROUNDS):
        with unharmed(server):
            fates += asyncio.run(send(server, (REQUESTS - WARM_UP) // ROUNDS, rng))
    assert set(fates) == {"200", "400", "404", "left"} and fates["left"] > 300, fates
    after = at_rest(server)
    for name in before:
        grown = [now - then for now, then in zip(after[name], before[name], strict=True)]
        allowed = MOST_OF_WORKER if name == "VLLM::Worker" else MOST_GROWTH
        assert all(more <= most for more, most in zip(grown, allowed, strict=True)), (name, grown)
    # What is seen for the first time may add a few; with each request one more would be thousands.
    assert len(more := scrape(server, "").keys() - samples) <= FEW, more
    ended = metrics(server)
    error, abort, left = (
        ended[name] - counted[name] for name in map(OUTCOMES.format, ("error", "abort", "disconnect"))
    )
    assert error == abort == 0 and left > 300


def at_rest(server: Server) -> dict[str, tuple[int, int, int]]:
    """Resident memory in bytes, open files and threads of the API server, the engine and its worker.

    Once no request is unfinished and the sockets of clients that left are closed.
    """
    settle(server)
    time.sleep(2)
    held = {"api": psutil.Process(server.process.pid)}
    held |= {title: named(server, title)[0] for title in ("VLLM::EngineCore", "VLLM::Worker")}
    return {name: (each.memory_info().rss, each.num_fds(), each.num_threads()) for name, each in held.items()}
