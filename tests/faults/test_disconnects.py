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

TOKENS = 40
# Its seventh token is computed in the next factor set.
CROSSING = 250


def ask(length: int, *, stream: bool = True, tokens: int = TOKENS, **more: Any) -> bytes:
    body = {"model": MODEL, "prompt": [random.randrange(5, 95) for _ in range(length)], "max_tokens": tokens}
    return whole(body | {"ignore_eos": True, "stream": stream} | more)


def in_its_body(server: Server) -> int:
    with gone_after(server, head("content-length: 100") + b'{"model": "pass'):
        time.sleep(0.02)
    return 1


def before_it_is_read(server: Server) -> int:
    with gone_after(server, ask(20)):
        pass
    return 1


def in_the_queue(server: Server) -> int:
    """Behind prompts that fill several steps."""
    prompts = [[random.randrange(5, 95) for _ in range(1000)] for _ in range(12)]
    with gone_after(server, ask(1, prompt=prompts, tokens=1)) as first:
        time.sleep(0.05)
        with gone_after(server, ask(30)):
            time.sleep(0.02)
        assert read_events(first, len(prompts)) == len(prompts)
    return len(prompts) + 1


def in_the_prefill(server: Server) -> int:
    with gone_after(server, ask(900, stream=random.random() < 0.5)):
        time.sleep(random.uniform(0, 0.05))
    return 1


def before_the_first_token(server: Server) -> int:
    with gone_after(server, ask(10, stream=False, tokens=900)):
        time.sleep(0.03)
    return 1


def in_a_switch(server: Server) -> int:
    with gone_after(server, ask(CROSSING)) as opened:
        read_events(opened, random.choice([5, 6, 7]))
        time.sleep(random.uniform(0, 0.03))
    return 1


def in_the_stream(server: Server) -> int:
    with gone_after(server, ask(20, tokens=900, n=2, temperature=1)) as opened:
        assert read_events(opened, 10) >= 10
    return 2


def at_the_last_token(server: Server) -> int:
    with gone_after(server, ask(20)) as opened:
        read_events(opened, TOKENS - random.choice([0, 1]))
    return 1


STAGES: tuple[Callable[[Server], int], ...] = (
    in_its_body,
    before_it_is_read,
    in_the_queue,
    in_the_prefill,
    before_the_first_token,
    in_a_switch,
    in_the_stream,
    at_the_last_token,
)


def leave_at_every_stage(server: Server, rounds: int) -> None:
    settle(server)
    before, files = metrics(server), held(server)
    sent = 0
    with unharmed(server) as other:
        for _ in range(rounds):
            for stage in random.sample(STAGES, len(STAGES)):
                sent += stage(server)
    sent += settle(server) + other.answers + len(other.alone)
    after = metrics(server)
    moved = {name: after[name] - before.get(name, 0) for name in after if name.startswith("ropeswitch_requests_total")}
    assert moved.pop("ropeswitch_requests_total") == sum(moved.values()) == sent, (sent, moved)
    # Those of the stream alone last so long that no busy machine answers them first.
    assert moved["ropeswitch_requests_total{disconnect}"] >= 2 * rounds
    assert not moved.get("ropeswitch_requests_total{error}") and not moved.get("ropeswitch_requests_total{abort}")
    for name, process in held(server).items():
        assert process.files <= files[name].files + 2, name


@pytest.mark.full
def test_clients_that_leave_harm_no_other_and_leave_nothing(server: Server) -> None:
    leave_at_every_stage(server, 25)
