"""Clients that send slowly, read slowly or not at all, and many of them: they are cut, and others notice nothing.

The server's patience is two seconds here, where it is a minute by default.
"""

import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.faults.beside import unharmed
from tests.faults.conftest import FLAGS, MODEL
from tests.faults.raw import answer_on, connect, drip, head, read_all, whole
from tests.faults.state import held, metrics, settle
from tests.passkey_tiny import SERVED
from tests.server.asking import wait_until
from tests.server.running import Server, running

PATIENCE = 2.0
# Long chunks: log-probabilities of twenty tokens for each.
VERBOSE: dict[str, Any] = {"model": MODEL, "prompt": [5] * 10, "max_tokens": 1000, "ignore_eos": True}
VERBOSE |= {"stream": True, "logprobs": 20}
READERS = 24
CONNECTIONS = 500
# What so many connections, streams and heads may take in all: 256 KiB each.
MOST_MEMORY = CONNECTIONS << 18


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = [*FLAGS, "--body-timeout", str(PATIENCE)]
    with running(tmp_path_factory.mktemp("impatient"), *SERVED, *flags) as started:
        yield started


def cut(server: Server, opened: socket.socket, code: str = "request_timeout") -> None:
    """The server answers within some of its patience that it has none left, and closes."""
    answer = answer_on(opened)
    opened.close()
    assert answer.status == 408 and answer.json["error"]["code"] == code and answer.headers["connection"] == "close"


@pytest.mark.full
def test_heads_and_bodies_that_stop_or_drip(impatient: Server) -> None:
    with unharmed(impatient):
        for sent in (b"POST", head()[:-2], head("content-length: 100"), head("content-length: 100") + b"{"):
            opened = connect(impatient)
            opened.sendall(sent)
            cut(impatient, opened)
        for start, dripping in ((b"", head("x: " + "a" * 500)), (head("content-length: 500"), b" " * 500)):
            opened = connect(impatient)
            opened.sendall(start)
            started = time.monotonic()
            drip(opened, dripping, 0.1)
            assert time.monotonic() - started < 10 * PATIENCE
            cut(impatient, opened)
    settle(impatient)


def not_reading(server: Server) -> list[socket.socket]:
    readers = []
    for _ in range(READERS):
        readers.append(connect(server, 4096))
        readers[-1].sendall(whole(VERBOSE))
    return readers


@pytest.mark.full
def test_streams_that_nobody_reads_are_cut(impatient: Server) -> None:
    settle(impatient)
    before, counted = held(impatient), metrics(impatient)
    with unharmed(impatient):
        readers = not_reading(impatient)
        wait_until(lambda: held(impatient)["api"].files <= before["api"].files + 2, time.monotonic(), "readers cut", 90)
        for each in readers:
            each.close()
    settle(impatient)
    after = metrics(impatient)
    ended = {
        name: after.get(f"ropeswitch_requests_total{{{name}}}", 0)
        - counted.get(f"ropeswitch_requests_total{{{name}}}", 0)
        for name in ("disconnect", "error")
    }
    assert ended == {"disconnect": READERS, "error": 0}
    assert held(impatient)["api"].memory - before["api"].memory < MOST_MEMORY


@pytest.mark.full
def test_five_hundred_connections(server: Server) -> None:
    """Idle, with half a head, with half a body, and with requests; all of these are answered."""
    settle(server)
    before = held(server)
    starts = [b"", head()[:-2], head("content-length: 100") + b"{", whole(VERBOSE | {"logprobs": 0, "max_tokens": 30})]
    with unharmed(server) as other:
        opened = [connect(server) for _ in range(CONNECTIONS)]
        for at, each in enumerate(opened):
            each.sendall(starts[at % len(starts)])
        answers = other.answers
        for each in opened[3 :: len(starts)]:
            assert b'"finish_reason":"length"' in read_all(each)
        wait_until(lambda: other.answers > answers + 3, time.monotonic(), "answers beside them", 60)
        assert held(server)["api"].files >= before["api"].files + CONNECTIONS * 3 // 4
        for each in opened:
            each.close()
    settle(server)
    wait_until(lambda: held(server)["api"].files <= before["api"].files + 2, time.monotonic(), "closed files")
    assert held(server)["api"].memory - before["api"].memory < MOST_MEMORY


@pytest.mark.full
def test_a_server_that_leaves_waits_for_none_of_them(impatient: Server) -> None:
    """Runs last: the server is gone then."""
    children = psutil.Process(impatient.process.pid).children(recursive=True)
    waiting = [connect(impatient) for _ in range(6)]
    for each, start in zip(waiting, (b"", b"GET", head()[:-2], head("content-length: 9")), strict=False):
        each.sendall(start)
    readers = not_reading(impatient)
    time.sleep(1)
    impatient.process.send_signal(signal.SIGTERM)
    assert impatient.process.wait(30) == 0
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    for each in waiting + readers:
        each.close()
