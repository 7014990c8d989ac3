"""The routes of vLLM's development mode: requests that arrive before and during a sleep are answered after it.

A CPU worker keeps its memory; ``tests/exactness/test_sleep.py`` has what a worker loses.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import Asking, streaming
from tests.server.checkpoint import WINDOW
from tests.server.conftest import MODEL
from tests.server.running import ENGINE, Server, running

# Below, across and above the end of the first set.
PROMPTS = [[5] * 20, [6] * (WINDOW - 30), [7] * (WINDOW + 30)]


# Short requests, and long ones that are streamed while the server falls asleep.
BODIES = [{"model": MODEL, "prompt": each, "max_tokens": 40, "temperature": 0, "ignore_eos": True} for each in PROMPTS]
LONG = [body | {"max_tokens": 700} for body in BODIES]


def texts(server: Server, bodies: list[dict[str, Any]]) -> list[str]:
    return [server.post("/v1/completions", body).json["choices"][0]["text"] for body in bodies]


@pytest.mark.full
def test_a_server_sleeps_and_wakes(checkpoint: Path, tmp_path: Path) -> None:
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    with running(tmp_path, str(checkpoint), *ENGINE, "--served-model-name", MODEL, variables=variables) as server:
        expected, whole = texts(server, BODIES), texts(server, LONG)
        for level in (1, 2):
            before = streaming(server, *LONG)
            assert server.post(f"/sleep?level={level}&mode=keep", {}).status == 200
            assert server.get("/is_sleeping").json == {"is_sleeping": True}
            during = [Asking(server, body) for body in BODIES]
            assert server.post("/wake_up?tags=weights", {}).json["status"] == "sleeping"
            assert server.post("/collective_rpc", {"method": "reload_weights"}).status == 200
            assert not any(each.ended for each in (*before, *during))
            assert server.post("/wake_up?tags=kv_cache", {}).json["status"] == "awake"
            for each in (*before, *during):
                each.join(120)
                assert each.status == 200 and each.broken is None
            assert [json.loads(each.lines[0])["choices"][0]["text"] for each in during] == expected
            streamed = [[event["choices"][0]["text"] for event in each.events] for each in before]
            assert list(map("".join, streamed)) == whole and texts(server, BODIES) == expected
        # Requests in flight end where nobody asked for them to be kept.
        cut = streaming(server, *LONG)
        assert server.post("/sleep?level=2", {}).status == 200
        assert server.post("/wake_up", {}).json["status"] == "awake"
        for each in cut:
            each.join(120)
            assert any('"finish_reason":"abort"' in line for line in each.lines)
        assert server.post("/reset_prefix_cache", {}).status == 200
        assert texts(server, BODIES) == expected
