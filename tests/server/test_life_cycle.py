"""A server that was sent SIGTERM: no new requests, the running ones answered in full, exit code 0."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from vllm.v1.engine.async_llm import AsyncLLM

from ropeswitch.server.app import engine_client, life_cycle
from ropeswitch.server.app.life_cycle import LifeCycle
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.refusal import RefusedError
from tests.passkey_tiny import SERVED
from tests.server.front.parts import error_of, parts, server_parts
from tests.server.running import PROGRAM, Answer, Server, running

FLAGS = ["--enforce-eager", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(1 << 30)]


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


def test_the_client_s_shutdown_waits_for_the_requests_in_flight_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(engine_client, "LIFE", SimpleNamespace(leave=lambda client: calls.append(client)))
    monkeypatch.setattr(AsyncLLM, "shutdown", lambda self, timeout=None: calls.append(timeout))
    client: Any = engine_client.RopeClient.__new__(engine_client.RopeClient)
    client.shutdown(timeout=5)
    assert calls == [client, 5]
    # Collected, it shuts down again, with no one left to be asked.
    monkeypatch.undo()


@pytest.mark.parametrize("root", ["", "/prefix"])
def test_who_leaves_answers_probes_and_scrapes_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: str
) -> None:
    app = FastAPI(root_path=root)
    app.state.ropeswitch = server_parts(parts(tmp_path)[0])
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


def stream(server: Server, tokens: int) -> Iterator[Any]:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    return iter(
        client.completions.create(
            model="passkey-tiny", prompt="The", max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
        )
    )


def refused(server: Server) -> Answer:
    """The first refusal of a new request by a server that was sent SIGTERM."""
    for _ in range(100):
        answer = server.post("/v1/completions", {"model": "passkey-tiny", "prompt": "The", "max_tokens": 1})
        if answer.status != 200:
            return answer
        time.sleep(0.02)
    raise AssertionError("new requests are still taken")


@pytest.mark.full
def test_it_drains(tmp_path: Path) -> None:
    """Probes, new requests and a stream, before and after SIGTERM."""
    with running(tmp_path, *SERVED, *FLAGS, "--shutdown-timeout", "60", command=PROGRAM) as server:
        assert [server.get(path).status for path in ("/health/live", "/health/ready", "/health")] == [200, 200, 200]
        chunks = stream(server, 500)
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        answer = refused(server)
        assert answer.status == 503 and answer.json["error"]["code"] == "server_leaving"
        assert int(answer.headers["retry-after"]) > 0
        assert [server.get(path).status for path in ("/health/live", "/health/ready", "/health")] == [200, 503, 503]
        assert server.get("/metrics").status == 200
        rest = list(chunks)
        assert rest[-1].choices[0].finish_reason == "length"
        assert server.process.wait(30) == 0
        assert "Traceback" not in server.log.read_text()


@pytest.mark.full
def test_a_stream_that_waits_is_kept_alive_and_without_time_to_drain_all_are_ended(tmp_path: Path) -> None:
    """The official client skips the comments. As with vLLM's default; here each stream gets a final ``abort``."""
    flags = [*SERVED, *FLAGS[:1], *FLAGS[3:], "--max-num-seqs", "1", "--sse-keep-alive-interval", "1"]
    with running(tmp_path, *flags, "--shutdown-timeout", "0") as server:
        first = stream(server, 1000)
        next(first)
        # Read on, or the server would wait for this client.
        threading.Thread(target=list, args=(first,), daemon=True).start()
        waiting = server.post("/v1/completions", {"model": "passkey-tiny", "prompt": "The", "stream": True})
        lines = [line for line in waiting.text.split("\n") if line]
        assert lines[0] == ": keep-alive" and lines[-1] == "data: [DONE]"
        chunks = stream(server, 1000)
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        rest = list(chunks)
        assert rest[-1].choices[0].finish_reason == "abort" and len(rest) < 999
        assert server.process.wait(30) == 0
