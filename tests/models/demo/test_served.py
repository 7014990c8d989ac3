"""The demo as a reader runs it: `make demo`, then the requests of docs/start.md."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest

from ropeswitch.models.demo.__main__ import NAME
from tests.docs.pages import ROOT, blocks, commands
from tests.server.running import START_SECONDS, Server, environment, free_port

pytestmark = pytest.mark.full
START = ROOT / "docs" / "start.md"
FOLDER = ROOT / ".demo"
"""The one that `make demo` uses: what a reader or an earlier run fetched is not fetched again."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`make demo` with the interpreter of the tests, on a free port."""
    port = free_port()
    log = tmp_path_factory.mktemp("demo") / "log"
    make = ["make", "-o", ".venv/.setup-done", f"BIN={Path(sys.executable).parent}", f"PORT={port}", "demo"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            make, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", log, process)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_ready(server):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _is_ready(server: Server) -> bool:
    with suppress(OSError):
        return server.get("/health/ready").status == 200
    return False


def test_it_answers_the_question_of_the_page(demo: Server) -> None:
    [request] = [
        body for words in commands(START, "curl") if (body := json.loads(words[words.index("-d") + 1]))["model"] == NAME
    ]
    answer = demo.post("/v1/chat/completions", request)
    [choice] = answer.json["choices"]
    assert "Paris" in choice["message"]["content"] and choice["finish_reason"] == "stop"
    assert answer.json["model"] == NAME and answer.sets == "original"


def test_it_finds_the_sentence_of_the_page_in_12000_tokens(demo: Server) -> None:
    code = blocks(START, "python")[1]
    assert f'model="{NAME}"' in code
    output, variables = StringIO(), {"__name__": "start"}
    with redirect_stdout(output):
        exec(compile(code.replace("http://127.0.0.1:8000", demo.url), "start.md", "exec"), variables)
    used, reply = output.getvalue().split("\n", 1)
    assert used == "16k"
    assert "lives in Lisbon" in reply
    prompt = variables["response"].parse().usage.prompt_tokens
    assert 11_500 <= prompt <= 12_500
