"""A fault inside the server is a 500 that tells nothing, is counted, is logged once, and harms no other request."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeswitch.server.front.refusal import FAULT
from tests.faults.beside import unharmed
from tests.faults.conftest import FLAGS, MODEL
from tests.faults.injected.sitecustomize import PREFIX, SECRET
from tests.faults.state import metrics, settle
from tests.passkey_tiny import SERVED
from tests.server.running import Server, running


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = os.pathsep.join([str(Path(__file__).with_name("injected")), *filter(None, [os.environ.get("PYTHONPATH")])])
    with running(tmp_path_factory.mktemp("injected"), *SERVED, *FLAGS, variables={"PYTHONPATH": path}) as started:
        yield started


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", ["handler", "input", "engine"])
def test_one_request_fails_inside(faulty: Server, fault: str, stream: bool) -> None:
    before, logged = metrics(faulty), len(faulty.log.read_text())
    with unharmed(faulty):
        asked = {"model": MODEL, "prompt": [5] * 20, "max_tokens": 3, "stop": [PREFIX + fault], "stream": stream}
        answer = faulty.post("/v1/completions", asked)
    if answer.status == 200:
        assert stream
        [event] = [line for line in answer.text.splitlines() if line.startswith('data: {"error"')]
        error = json.loads(event.removeprefix("data: "))["error"]
    else:
        assert answer.status == 500
        error = answer.json["error"]
    assert error == {"message": FAULT, "type": "server_error", "param": None, "code": None}
    assert SECRET not in answer.text
    settle(faulty)
    name = "ropeswitch_requests_total{error}"
    assert metrics(faulty)[name] - before[name] == 1
    time.sleep(0.5)
    log = faulty.log.read_text()[logged:]
    assert log.count(f"RuntimeError: {SECRET}") == 1, log
