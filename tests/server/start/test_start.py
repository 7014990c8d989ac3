"""Starts and stops of the real command, line by line."""

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import not_ready, streaming, wait_until
from tests.server.running import FORKED, PROGRAM, Server, free_port, running, started

STREAM = {"model": "longrope-mini", "prompt": "The", "max_tokens": 100_000, "ignore_eos": True}


def lines_of(server: Server) -> list[str]:
    """The lines printed so far, without those of the access log."""
    return [line for line in server.log.read_text().splitlines() if not line.startswith('{"time"')]


def wait_for_curl(server: Server) -> list[str]:
    wait_until(lambda: "\ncurl " in server.log.read_text(), "curl", 20)
    return lines_of(server)


def interrupt(server: Server) -> None:
    """Ctrl-C: the terminal sends the signal to every process of the command."""
    os.killpg(server.process.pid, signal.SIGINT)


def run_curl(line: str) -> Any:
    """What the printed command answers, run as it is."""
    done = subprocess.run(
        f"{line} --silent --write-out '\\n%{{http_code}}'", shell=True, capture_output=True, text=True, check=True
    )
    body, _, status = done.stdout.rpartition("\n")
    assert status == "200", done.stdout
    return json.loads(body)


def test_the_bundled_model_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    with running(tmp_path, "--enforce-eager", command=PROGRAM) as server:
        first, *rest, ready, curl = wait_for_curl(server)
        assert first.startswith("ropeswitch: version ") and ", vLLM 0." in first
        shown = [line.removeprefix("ropeswitch: ") for line in rest]
        # Progress depends on the machine's speed.
        summary = [line for line in shown if not re.match(r"[\w ']+ \(\d+ s\)", line)]
        assert summary[0].startswith("ladder file:") and summary[0].endswith("longest sequence 262,144 tokens")
        assert [line.split()[0] for line in summary[1:]] == "set r1 r2 x64 x512 rope_theta starting".split()
        assert summary[-1].endswith(", served as longrope-mini")
        assert ready.startswith("ropeswitch: ready in ") and server.url in ready
        assert run_curl(curl)["choices"][0]["message"]["content"]
        # Its limit without max_tokens is the model's own.
        body = json.loads(shlex.split(curl)[-1]) | {"max_tokens": None, "ignore_eos": True}
        assert server.post("/v1/chat/completions", body).json["usage"]["completion_tokens"] == 512
        before = len(lines_of(server))
        interrupt(server)
        assert server.process.wait(60) == 0
        assert lines_of(server)[before:] == ["ropeswitch: stopped"]


@pytest.mark.full
def test_a_second_ctrl_c_ends_the_wait_for_requests(tmp_path: Path) -> None:
    with running(tmp_path, "--enforce-eager") as server:
        before = len(wait_for_curl(server))
        [asking] = streaming(server, STREAM)
        interrupt(server)
        waiting = "ropeswitch: waiting up to 25 s for 1 request in flight; Ctrl-C again ends the wait"
        wait_until(lambda: waiting in lines_of(server), waiting, 20)
        interrupt(server)
        asking.join(60)
        assert asking.events[-1]["choices"][0]["finish_reason"] == "abort" and "data: [DONE]" in asking.lines
        server.process.wait(60)
        assert lines_of(server)[before:] == [waiting, "ropeswitch: stopped"]


def arguments(port: int) -> list[str]:
    return ["serve", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]


@pytest.mark.full
def test_requests_are_answered_while_nobody_reads_the_output(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with started([*arguments(port := free_port()), "--verbose"], os.fdopen(writer, "wb"), FORKED) as process:
        server = Server(f"http://127.0.0.1:{port}", tmp_path, process)
        wait_until(lambda: not not_ready(server), "ready", 200)
        for _ in range(400):
            assert server.get("/v1/models").status == 200
        body = {"model": "longrope-mini", "prompt": "The", "max_tokens": 2}
        assert server.post("/v1/completions", body).status == server.get("/health/live").status == 200
        process.terminate()
        assert process.wait(60) == 0
    os.close(reader)


@pytest.mark.full
@pytest.mark.parametrize(("when", "end"), [("version", signal.SIGINT), ("starting the engine for", signal.SIGTERM)])
def test_a_start_that_is_stopped_says_so_alone(tmp_path: Path, when: str, end: signal.Signals) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as output, started(arguments(free_port()), output) as process:
        wait_until(lambda: f"ropeswitch: {when}" in log.read_text(), when, 200)
        # While vLLM is imported, or its engine's process is.
        time.sleep(3)
        if end == signal.SIGINT:
            os.killpg(process.pid, end)
        else:  # as systems stop a service
            process.send_signal(end)
        # Python ends itself by the signal where that interrupted an ``exec``; shells show 130 for both.
        assert process.wait(60) in (130, -signal.SIGINT)
    lines = log.read_text().splitlines()
    assert lines[-1] == "ropeswitch: stopped" and all(line.startswith("ropeswitch: ") for line in lines)
