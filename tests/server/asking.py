"""Requests in flight, and the processes of a server, for tests that break the one under the other."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import psutil

from tests.server.running import Server

# From a fault to what clients and load balancers see of it.
SECONDS = 10


class Asking(threading.Thread):
    """A request in flight: its answer's status, what came of the body, and when it ended.

    Attributes:
        status: The answer's, 0 before there is one.
        lines: Of the body.
        ended: When, by the monotonic clock; 0 before.
        broken: What ended the connection, where the answer is not whole.
    """

    def __init__(self, server: Server, body: dict[str, Any], path: str = "/v1/completions") -> None:
        super().__init__(daemon=True)
        self.url, self.body = server.url + path, body
        self.status = 0
        self.lines: list[str] = []
        self.ended = 0.0
        self.broken: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with httpx2.stream("POST", self.url, json=self.body, timeout=120) as response:
                self.status = response.status_code
                for line in response.iter_lines():
                    self.lines.append(line.strip())
        except httpx2.HTTPError as error:
            self.broken = error
        self.ended = time.monotonic()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream that hold JSON."""
        return [json.loads(line.removeprefix("data: ")) for line in self.lines if line.startswith("data: {")]


def streaming(server: Server, *bodies: dict[str, Any]) -> list[Asking]:
    """Streams of which the first tokens have come."""
    started = [Asking(server, body | {"stream": True}) for body in bodies]
    wait_until(lambda: all(len(each.events) > 1 for each in started), "first tokens", 60)
    return started


def processes(server: Server) -> list[psutil.Process]:
    """The server's own, without the command's."""
    return psutil.Process(server.process.pid).children(recursive=True)


def named(server: Server, name: str) -> list[psutil.Process]:
    """Those whose title has ``name`` in it."""
    return [each for each in processes(server) if name in " ".join(each.cmdline())]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def not_ready(server: Server) -> bool:
    """Whether a load balancer would take it out."""
    try:
        return server.get("/health/ready").status != 200
    except OSError:
        return True
