"""Two API servers that are told to leave answer what they have in hand, both of them, and refuse the rest."""

import signal
import time
from pathlib import Path

import pytest

from tests.faults.conftest import FLAGS, MODEL
from tests.passkey_tiny import SERVED
from tests.server.asking import Asking, wait_until
from tests.server.running import PROGRAM, running

STREAM = {"model": MODEL, "prompt": [5] * 20, "max_tokens": 120, "ignore_eos": True, "stream": True}


@pytest.mark.full
def test_two_api_servers_drain(tmp_path: Path) -> None:
    with running(
        tmp_path, *SERVED, *FLAGS, "--api-server-count", "2", "--shutdown-timeout", "120", command=PROGRAM
    ) as server:
        clients = [Asking(server, STREAM) for _ in range(6)]
        wait_until(lambda: all(len(each.lines) > 4 for each in clients), time.monotonic(), "streams that run", 60)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        late = Asking(server, STREAM | {"max_tokens": 2})
        for each in clients:
            each.join(120)
            assert each.broken is None and each.events[-1]["choices"][0]["finish_reason"] == "length"
        late.join(60)
        assert late.broken is not None or (late.status == 503 and late.error["code"] == "server_leaving")
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log.read_text()
