"""The access log of a running server: one line a request, with what became of it."""

import json
import time
from typing import Any

import pytest

from tests.server.conftest import MODEL
from tests.server.running import Server
from tests.server.test_length_metrics import Moved, generate, leave, scrape

SECONDS = 30.0


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


def test_a_short_answer(server: Server) -> None:
    log = Log(server)
    answer = generate(server, 20, 3)
    line = log.only()
    seconds, waited = line.pop("seconds"), line.pop("seconds_to_first_token")
    assert 0 < waited < seconds < SECONDS
    client, came = line.pop("client"), line.pop("time")
    assert client.startswith("127.0.0.1:") and came.endswith("Z") and len(came) == len("2026-01-01T00:00:00.000Z")
    assert line == {
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "key": None,
        "request_id": answer.json["id"],
        "model": MODEL,
        "prompt_tokens": 20,
        "generated_tokens": 3,
        "length_band": "1-256",
        "factor_set": "short",
        "ladder_policy": "length",
        "later_factor_sets": [],
        "switches": 0,
        "recomputed_tokens": 0,
        "outcome": "length",
        "reason": None,
    }


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_outgrows_its_set(server: Server, stream: bool) -> None:
    log, before = Log(server), scrape(server)
    # Prompts of their own: what a switch finds in the prefix cache is not computed again.
    body = {"model": MODEL, "prompt": [9 + stream] * 250, "max_tokens": 20, "ignore_eos": True, "stream": stream}
    assert server.post("/v1/completions", body).status == 200
    line, moved = log.only(), Moved(before, scrape(server))
    assert (line["factor_set"], line["later_factor_sets"], line["switches"]) == ("short", ["long"], 1)
    assert (line["prompt_tokens"], line["generated_tokens"]) == (250, 20)
    assert line["recomputed_tokens"] == moved("switch_recomputed_tokens_total") <= 256
    assert line["outcome"] == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves(server: Server, stream: bool) -> None:
    body = {"model": MODEL, "prompt": [5] * 100, "max_tokens": 900, "ignore_eos": True, "stream": stream}
    # On a busy machine the answer may be complete before the client has seen its first token.
    for _ in range(20):
        log = Log(server)
        leave(server, body)
        if (line := log.only())["outcome"] != "length":
            break
    assert (line["outcome"], line["status"]) == ("disconnect", 200 if stream else None)
    assert line["prompt_tokens"] == 100 and 0 < line["generated_tokens"] < 900


def test_refused_requests(server: Server) -> None:
    for send, status, reason in (
        (lambda: generate(server, 1100, 2), 400, "invalid"),
        (lambda: server.post("/v1/completions", b"{broken"), 400, "invalid"),
        (lambda: server.get("/nothing"), 404, "invalid"),
    ):
        log = Log(server)
        assert send().status == status
        line = log.only()
        assert (line["status"], line["outcome"], line["reason"]) == (status, "rejected", reason)


def test_what_the_front_refuses(server: Server) -> None:
    log = Log(server)
    assert server.announce("/v1/completions", 10**12) == 413
    line = log.only()
    assert (line["status"], line["outcome"], line["reason"]) == (413, "rejected", "body_bytes")


def test_prompts_keys_and_probes_are_not_logged(server: Server) -> None:
    log = Log(server)
    body = {"model": MODEL, "prompt": "marzipan", "max_tokens": 2}
    assert server.get("/health/live").status == server.get("/metrics").status == 200
    assert server.post("/v1/completions?key=sk-query", body, authorization="Bearer sk-header").status == 200
    assert log.only()["path"] == "/v1/completions"
    for secret in ("marzipan", "sk-query", "sk-header"):
        assert secret not in log.text()
