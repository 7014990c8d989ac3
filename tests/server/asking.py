"""Requests in flight, and the processes of a server, for tests that break the one under the other."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import IncompleteRead
from typing import Any

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
        self.request = urllib.request.Request(
            server.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        self.status = 0
        self.lines: list[str] = []
        self.ended = 0.0
        self.broken: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self.request, timeout=120) as response:
                self.status = response.status
                # Lines by themselves would not tell a stream that broke from one that ended.
                rest = b""
                while part := response.read1(65536):
                    *lines, rest = (rest + part).split(b"\n")
                    self.lines += [line.decode().strip() for line in lines]
                self.lines += [rest.decode()] if rest else []
        except urllib.error.HTTPError as error:
            self.status = error.code
            self.lines.append(error.read().decode())
        except (OSError, IncompleteRead) as error:
            self.broken = error
        self.ended = time.monotonic()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream that hold JSON."""
        return [json.loads(line.removeprefix("data: ")) for line in self.lines if line.startswith("data: {")]

    @property
    def error(self) -> dict[str, Any]:
        """The error of an answer that is one."""
        return dict(json.loads(self.lines[0])["error"])


def processes(server: Server) -> list[psutil.Process]:
    """The server's own, without the command's."""
    return psutil.Process(server.process.pid).children(recursive=True)


def named(server: Server, name: str) -> list[psutil.Process]:
    """Those whose title has ``name`` in it."""
    return [each for each in processes(server) if name in " ".join(each.cmdline())]


def wait_until(condition: Callable[[], Any], since: float, what: str, seconds: float = SECONDS) -> float:
    """Seconds from ``since`` until the condition holds."""
    while not condition():
        assert time.monotonic() < since + seconds, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - since


def not_ready(server: Server) -> bool:
    """Whether a load balancer would take it out."""
    try:
        return server.get("/health/ready").status != 200
    except OSError:
        return True


def lose(server: Server, name: str) -> float:
    """Kill a process; the server must say within seconds that it is not ready, and then leave nothing behind.

    Returns:
        When the process was killed.
    """
    started = processes(server)
    named(server, name)[0].kill()
    killed = time.monotonic()
    wait_until(lambda: not_ready(server), killed, "a server that is not ready")
    assert server.process.wait(30) != 0
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive
    return killed
