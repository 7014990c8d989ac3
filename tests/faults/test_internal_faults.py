"""A fault inside the server is a 500 that tells nothing, is counted, is logged once, and harms no other request."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.server.front.refusal import FAULT
from tests.faults.beside import unharmed
from tests.faults.conftest import FLAGS, MODEL
from tests.faults.injected.sitecustomize import PREFIX, SECRET
from tests.faults.state import metrics, settle
from tests.passkey_tiny import SERVED
from tests.server.running import Server, running

FOLDER = Path(__file__).parent / "injected"


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    with running(tmp_path_factory.mktemp("injected"), *SERVED, *FLAGS, variables={"PYTHONPATH": path}) as started:
        yield started


def ask(fault: str | None, **more: Any) -> dict[str, Any]:
    asked = {"stop": [PREFIX + fault]} if fault is not None else {}
    return {"model": MODEL, "prompt": [5] * 20, "max_tokens": 3, "ignore_eos": True, "temperature": 0} | asked | more


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", ["handler", "input", "engine"])
def test_one_request_fails_inside(faulty: Server, fault: str, stream: bool) -> None:
    alone = faulty.post("/v1/completions", ask(None)).json["choices"][0]["text"]
    before, logged = metrics(faulty), len(faulty.log.read_text())
    with unharmed(faulty):
        answer = faulty.post("/v1/completions", ask(fault, stream=stream))
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
    assert metrics(faulty)[name] - before.get(name, 0) == 1
    time.sleep(0.5)
    log = faulty.log.read_text()[logged:]
    assert log.count(f"RuntimeError: {SECRET}") == 1, log
    assert faulty.post("/v1/completions", ask(None)).json["choices"][0]["text"] == alone
