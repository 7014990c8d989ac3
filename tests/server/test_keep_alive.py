"""A stream that waits is kept open by comments, which the official client skips."""

import threading
import urllib.request
from pathlib import Path

import pytest

from tests.passkey_tiny import SERVED
from tests.server.running import running
from tests.server.test_life_cycle import FLAGS, stream


@pytest.mark.full
def test_a_stream_that_waits_for_another_is_kept_alive(tmp_path: Path) -> None:
    with running(tmp_path, *SERVED, *FLAGS, "--max-num-seqs", "1", "--sse-keep-alive-interval", "1") as server:
        first = stream(server, 1000)
        next(first)
        # Read on, or the server would wait for this client.
        threading.Thread(target=list, args=(first,), daemon=True).start()
        body = b'{"model": "passkey-tiny", "prompt": "The", "max_tokens": 2, "stream": true}'
        request = urllib.request.Request(server.url + "/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            lines = [line for line in response.read().decode().split("\n") if line]
        assert lines[0] == ": keep-alive" and lines[-1] == "data: [DONE]"
        assert list(stream(server, 2))[-1].choices[0].finish_reason == "length"
