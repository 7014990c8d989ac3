"""Clients that leave at every stage: nothing of them is left, each is counted, and nobody else notices."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.beside import unharmed
from tests.faults.conftest import MODEL
from tests.faults.raw import gone_after, head, read_events, whole
from tests.faults.state import held, metrics, settle
from tests.server.running import Server

ROUNDS = 25
TOKENS = 40
# Its seventh token is computed in the next factor set.
CROSSING = 250


def ask(length: int, *, stream: bool = True, tokens: int = TOKENS, **more: Any) -> bytes:
    body = {"model": MODEL, "prompt": [random.randrange(5, 95) for _ in range(length)], "max_tokens": tokens}
    return whole(body | {"ignore_eos": True, "stream": stream} | more)


def leave(server: Server, sent: bytes, events: int = 0, seconds: float = 0, count: int = 1) -> int:
    """Send, read so many events, wait, and be gone; the number of answers that were asked for."""
    with gone_after(server, sent) as opened:
        read_events(opened, events)
        time.sleep(seconds)
    return count


def in_the_queue(server: Server) -> int:
    """Behind prompts that fill several steps."""
    prompts = [[random.randrange(5, 95) for _ in range(1000)] for _ in range(12)]
    with gone_after(server, ask(1, prompt=prompts, tokens=1)) as first:
        time.sleep(0.05)
        leave(server, ask(30), seconds=0.02)
        assert read_events(first, len(prompts)) == len(prompts)
    return len(prompts) + 1


STAGES: tuple[Callable[[Server], int], ...] = (
    # In its body, and before it is read.
    lambda server: leave(server, head("content-length: 100") + b'{"model": "pass', seconds=0.02),
    lambda server: leave(server, ask(20)),
    in_the_queue,
    # In the prefill, and before the first token.
    lambda server: leave(server, ask(900, stream=random.random() < 0.5), seconds=random.uniform(0, 0.05)),
    lambda server: leave(server, ask(10, stream=False, tokens=900), seconds=0.03),
    # In a switch, in the stream, and at the last token.
    lambda server: leave(server, ask(CROSSING), random.choice([5, 6, 7]), random.uniform(0, 0.03)),
    lambda server: leave(server, ask(20, tokens=900, n=2, temperature=1), 10, count=2),
    lambda server: leave(server, ask(20), TOKENS - random.choice([0, 1])),
)


@pytest.mark.full
def test_clients_that_leave_harm_no_other_and_leave_nothing(server: Server) -> None:
    settle(server)
    before, files = metrics(server), held(server)
    sent = 0
    with unharmed(server) as other:
        for _ in range(ROUNDS):
            for stage in random.sample(STAGES, len(STAGES)):
                sent += stage(server)
    sent += settle(server) + other.answers + len(other.alone)
    after = metrics(server)
    moved = {name: after[name] - before.get(name, 0) for name in after if name.startswith("ropeswitch_requests_total")}
    assert moved.pop("ropeswitch_requests_total") == sum(moved.values()) == sent, (sent, moved)
    # Those of the stream alone last so long that no busy machine answers them first.
    assert moved["ropeswitch_requests_total{disconnect}"] >= 2 * ROUNDS
    assert not moved.get("ropeswitch_requests_total{error}") and not moved.get("ropeswitch_requests_total{abort}")
    for name, process in held(server).items():
        assert process.files <= files[name].files + 2, name
