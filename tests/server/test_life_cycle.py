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

from ropeswitch.server.app import life_cycle
from ropeswitch.server.app.life_cycle import LifeCycle
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.refusal import RefusedError
from tests.passkey_tiny import SERVED
from tests.server.front.parts import error_of, parts, server_parts
from tests.server.running import PROGRAM, Answer, Server, running

FLAGS = ["--enforce-eager", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(1 << 30)]


def test_leaving_waits_for_the_last_request() -> None:
    life, order = LifeCycle(), []
    with life.request("/v1/models"), life.request("/v1/models"):
        thread = threading.Thread(target=lambda: (life.drain(60, lambda: order.append("abort")), order.append("left")))
        thread.start()
        while not life.leaving:
            time.sleep(0.001)
        with pytest.raises(RefusedError), life.request("/v1/models"):
            pass
        time.sleep(0.05)
        order.append("answered")
    thread.join()
    assert order == ["answered", "left"]


def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle, "LAST_WORDS", 0.05)
    life, order = LifeCycle(), []
    with life.request("/v1/models"):
        life.drain(0.01, lambda: order.append("abort"))
        order.append("left")
    assert order == ["abort", "left"]


def test_a_second_ctrl_c_ends_the_wait(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(life_cycle, "LAST_WORDS", 0.05)
    life, order = LifeCycle(), []

    async def abort(requests: list[str], *, internal: bool) -> None:
        order.append(("abort", requests, internal))

    engine = SimpleNamespace(
        errored=False,
        abort=abort,
        vllm_config=SimpleNamespace(shutdown_timeout=600),
        output_processor=SimpleNamespace(request_states={"a": None}),
        output_handler=None,
    )

    async def serve() -> None:
        life.start()
        first = signal.getsignal(signal.SIGINT)
        with life.request("/v1/models"):
            leaving = asyncio.get_running_loop().run_in_executor(None, life.leave, engine)
            while signal.getsignal(signal.SIGINT) is first:
                await asyncio.sleep(0.01)
            assert not order
            signal.raise_signal(signal.SIGINT)
            await leaving

    asyncio.run(asyncio.wait_for(serve(), 30))
    assert order == [("abort", ["a"], True)]
    waiting = "ropeswitch: waiting up to 600 s for 1 request in flight; Ctrl-C again ends the wait\n"
    assert capsys.readouterr().err == waiting


@pytest.mark.parametrize("errored", [False, True])
def test_an_engine_is_shut_down_when_its_requests_are_answered_or_it_is_dead(errored: bool) -> None:
    life, calls = LifeCycle(), []
    engine = SimpleNamespace(
        errored=errored,
        vllm_config=SimpleNamespace(shutdown_timeout=60),
        output_processor=SimpleNamespace(request_states={"a": None}),
        output_handler=None,
    )

    def shutdown(timeout: float) -> None:
        life.leave(engine)
        calls.append(timeout)

    async def serve() -> None:
        life.start()
        with life.request("/v1/models"):
            leaving = asyncio.get_running_loop().run_in_executor(None, lambda: shutdown(timeout=60))
            await asyncio.sleep(0.05)
            assert calls == ([60] if errored else [])
        await leaving
        # On the loop's own thread it waits for nothing.
        shutdown(timeout=1)

    asyncio.run(serve())
    assert calls == [60, 1] and life.leaving != errored


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
def test_without_time_to_drain_streams_are_ended_at_once(tmp_path: Path) -> None:
    """As with vLLM's default; here each stream gets a final chunk with ``abort``."""
    with running(tmp_path, *SERVED, *FLAGS, "--shutdown-timeout", "0") as server:
        chunks = stream(server, 1000)
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        rest = list(chunks)
        assert rest[-1].choices[0].finish_reason == "abort" and len(rest) < 999
        assert server.process.wait(30) == 0
