"""A server that was sent SIGTERM: no new requests, the running ones answered in full, exit code 0."""

import asyncio
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ropeswitch.server.app import life_cycle
from ropeswitch.server.app.life_cycle import LifeCycle
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.refusal import RefusedError
from tests.passkey_tiny import SERVED
from tests.server.asking import Asking, streaming
from tests.server.front.parts import error_of, parts, server_parts
from tests.server.running import Answer, Server, running

FLAGS = ["--enforce-eager", "--kv-cache-memory-bytes", str(1 << 30)]
STREAM: dict[str, Any] = {"model": "passkey-tiny", "prompt": "The", "ignore_eos": True, "stream": True}
LONG = STREAM | {"max_tokens": 1000}


class Engine:
    """An engine client with a request that may be aborted."""

    def __init__(self, errored: bool = False) -> None:
        self.errored, self.output_handler = errored, None
        self.vllm_config = SimpleNamespace(shutdown_timeout=600)
        self.output_processor = SimpleNamespace(request_states={"a": None})
        self.aborted: list[str] = []

    async def abort(self, requests: list[str], *, internal: bool) -> None:
        self.aborted += requests


@pytest.mark.parametrize("how", ["answered", "timeout", "ctrl-c", "dead"])
def test_leaving_waits_for_the_last_request(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Until it is answered, or the time is over, or a second Ctrl-C comes; for an engine that died, nobody waits."""
    monkeypatch.setattr(life_cycle, "LAST_WORDS", 0.05)
    life, engine = LifeCycle(), Engine(errored=how == "dead")
    if how == "timeout":
        engine.vllm_config.shutdown_timeout = 0.01

    async def serve() -> None:
        life.start()
        first = signal.getsignal(signal.SIGINT)
        leaving = None
        with life.request("/v1/models"):
            leaving = asyncio.get_running_loop().run_in_executor(None, life.leave, engine)
            if how in ("timeout", "dead"):
                return await leaving
            while signal.getsignal(signal.SIGINT) is first:
                await asyncio.sleep(0.01)
            with pytest.raises(RefusedError), life.request("/v1/models"):
                pass
            assert not leaving.done() and not engine.aborted
            if how == "ctrl-c":
                signal.raise_signal(signal.SIGINT)
                await leaving
        await leaving
        # On the loop's own thread, when the server has stopped and upstream counts the engine as dead.
        engine.errored = True
        life.leave(engine)

    asyncio.run(asyncio.wait_for(serve(), 30))
    assert engine.aborted == (["a"] if how in ("timeout", "ctrl-c") else [])
    assert life.died == (how == "dead") != life.leaving


@pytest.mark.parametrize("root", ["", "/prefix"])
def test_who_leaves_answers_probes_and_scrapes_alone(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    app = FastAPI(root_path=root)
    app.state.ropeswitch = server_parts(parts())
    app.add_middleware(Front)

    @app.get("/{path:path}")
    async def answer(path: str) -> str:
        return path

    client = TestClient(app)
    always = ["/health/live", "/health/ready", "/metrics", "/metrics/"]
    others = ["/", "/health", "/health/livefoo", "/health/live/more", "/metricsfoo", "/metrics/more", "/v1/metrics"]
    for leaving in (False, True):
        monkeypatch.setattr(life_cycle.LIFE, "leaving", leaving)
        assert {client.get(root + path).status_code for path in always} == {200}
        assert {client.get(root + path).status_code for path in others} == {503 if leaving else 200}
    refused = client.get(f"{root}/v1/models")
    assert error_of(refused)["code"] == "server_leaving"
    assert (refused.headers["retry-after"], refused.headers["connection"]) == ("5", "close")


def refused(server: Server) -> Answer:
    """The first refusal of a new request by a server that was sent SIGTERM."""
    for _ in range(100):
        # Of two API servers one may have nothing to wait for, and be gone.
        with suppress(OSError):
            answer = server.post("/v1/completions", STREAM | {"max_tokens": 1, "stream": False})
            if answer.status != 200:
                return answer
        time.sleep(0.02)
    raise AssertionError("new requests are still taken")


def reason(asking: Asking) -> str:
    """Why a stream ended."""
    asking.join(120)
    assert asking.broken is None and asking.ended
    return str(asking.events[-1]["choices"][0]["finish_reason"])


@pytest.mark.full
def test_it_drains(tmp_path: Path) -> None:
    """Probes, new requests and streams, before and after SIGTERM."""
    with running(tmp_path, *SERVED, *FLAGS, "--shutdown-timeout", "120") as server:
        assert [server.get(path).status for path in ("/health/live", "/health/ready", "/health")] == [200, 200, 200]
        clients = streaming(server, *[STREAM | {"max_tokens": 500}] * 6)
        server.process.send_signal(signal.SIGTERM)
        answer = refused(server)
        assert answer.status == 503 and answer.json["error"]["code"] == "server_leaving"
        assert int(answer.headers["retry-after"]) > 0
        paths = ("/health/live", "/health/ready", "/health", "/metrics")
        assert [server.get(path).status for path in paths] == [200, 503, 503, 200]
        assert {reason(each) for each in clients} == {"length"}
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log.read_text()


@pytest.mark.full
def test_a_stream_that_waits_is_kept_alive_and_without_time_to_drain_all_are_ended(tmp_path: Path) -> None:
    """As with vLLM's default; here each stream gets a final ``abort``."""
    flags = [*SERVED, *FLAGS, "--max-num-seqs", "1", "--sse-keep-alive-interval", "1"]
    with running(tmp_path, *flags, "--shutdown-timeout", "0") as server:
        streaming(server, LONG)
        waiting = Asking(server, STREAM)
        waiting.join(120)
        assert waiting.lines[0] == ": keep-alive" and "data: [DONE]" in waiting.lines
        [cut] = streaming(server, LONG)
        server.process.send_signal(signal.SIGTERM)
        assert reason(cut) == "abort" and len(cut.events) < 999
        assert server.process.wait(30) == 0
