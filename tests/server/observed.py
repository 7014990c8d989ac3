"""What a running server tells of its requests: its metrics by length, and its access log."""

import json
import socket
import time
from datetime import UTC, datetime
from typing import Any

from tests.server.asking import wait_until
from tests.server.conftest import MODEL
from tests.server.metrics.ladders import Labels, total, values
from tests.server.running import Server

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
    """The lines about requests that came since this was made; an earlier one's may be written after its answer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._from, self._since = server.log.stat().st_size, datetime.now(UTC).isoformat(timespec="milliseconds")

    def text(self) -> str:
        with self._server.log.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        whole, _, _ = self.text().rpartition("\n")  # A reader may see half of a line that crosses a page.
        lines = (json.loads(line) for line in whole.splitlines() if line.startswith('{"time"'))
        return [line for line in lines if line["time"] >= self._since]

    def only(self) -> dict[str, Any]:
        """The one line, when it has come; a second one would have come right after it."""
        wait_until(self.lines, "a line of the log", 30)
        time.sleep(0.5)
        [line] = self.lines()
        assert "HTTP/1.1" not in self.text(), "uvicorn logs it too"
        return line


def generate(server: Server, prompt: int, tokens: int, /, **more: Any) -> Any:
    body = {"model": MODEL, "prompt": [5 + i % 200 for i in range(prompt)], "max_tokens": tokens, "ignore_eos": True}
    return server.post("/v1/completions", body | {"temperature": 0} | more)


def leave(server: Server, body: dict[str, Any]) -> Moved:
    """Disconnect once a request has its first token; return how the metrics moved until it was counted."""
    before, content = scrape(server), json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
        if body["stream"]:
            assert client.recv(1)
        wait_for(server, before, "time_to_first_token_seconds_count")
    return wait_for(server, before, "requests_total")


def wait_for(server: Server, before: Found, name: str) -> Moved:
    """How the metrics moved once one of them did."""
    wait_until(lambda: Moved(before, scrape(server))(name), f"{name} moved", 60)
    return Moved(before, scrape(server))
