"""What a running server tells of its requests: its metrics by length, and its access log."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.server.conftest import MODEL
from tests.server.metrics.ladders import Labels, total, values
from tests.server.running import Server

SECONDS = 30.0
Found = dict[tuple[str, Labels], float]


def scrape(server: Server, prefix: str = "ropeswitch_") -> Found:
    return values(server.get("/metrics").text, prefix)


class Moved:
    """How much the metrics moved since before a block of requests; the gauges, which are read anew, left out."""

    def __init__(self, before: Found, after: Found) -> None:
        self.by = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}

    def __call__(self, name: str, **labels: str) -> float:
        return total(self.by, f"ropeswitch_{name}", **labels)


class Log:
    """The lines that were written since this was made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._from = server.log.stat().st_size

    def text(self) -> str:
        with self._server.log.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines() if line.startswith('{"time"')]

    def only(self) -> dict[str, Any]:
        """The one line, when it has come; a second one would have come right after it."""
        deadline = time.monotonic() + SECONDS
        while not self.lines():
            assert time.monotonic() < deadline, "nothing was logged"
            time.sleep(0.05)
        time.sleep(0.5)
        [line] = self.lines()
        assert "HTTP/1.1" not in self.text(), "uvicorn logs it too"
        return line


def generate(server: Server, prompt: int, tokens: int, /, **more: Any) -> Any:
    body = {"model": MODEL, "prompt": [5 + i % 200 for i in range(prompt)], "max_tokens": tokens, "ignore_eos": True}
    return server.post("/v1/completions", body | {"temperature": 0} | more)


@contextmanager
def connection(server: Server, body: dict[str, Any]) -> Iterator[http.client.HTTPConnection]:
    """A request that was sent, whose answer nobody has read; the client is gone at the end."""
    host, port = server.url.removeprefix("http://").split(":")
    opened = http.client.HTTPConnection(host, int(port), timeout=60)
    opened.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    try:
        yield opened
    finally:
        if opened.sock is not None:
            opened.sock.shutdown(socket.SHUT_RDWR)
        opened.close()


def leave(server: Server, body: dict[str, Any]) -> Moved:
    """Disconnect once a request has its first token; return how the metrics moved until it was counted."""
    before = scrape(server)
    deadline = time.monotonic() + 60
    with connection(server, body) as opened:
        if body["stream"]:
            assert b"data:" in opened.getresponse().readline()
        while not Moved(before, scrape(server))("time_to_first_token_seconds_count"):
            assert time.monotonic() < deadline, "no first token"
    while not (moved := Moved(before, scrape(server)))("requests_total"):
        assert time.monotonic() < deadline, "a client that left is not counted"
        time.sleep(0.05)
    return moved
