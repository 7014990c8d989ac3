"""The routes of vLLM's development mode: requests that arrive before and during a sleep are answered after it.

A CPU worker keeps its memory; ``tests/exactness/test_sleep.py`` has what a worker loses.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import Asking, wait_until
from tests.server.checkpoint import WINDOW
from tests.server.running import ENGINE, Answer, Server, running

# Below, across and above the end of the first set.
PROMPTS = [[5] * 20, [6] * (WINDOW - 30), [7] * (WINDOW + 30)]
TOKENS = 700


def body(server: Server, prompt: list[int], **changes: Any) -> dict[str, Any]:
    model = server.get("/v1/models").json["data"][0]["id"]
    return {"model": model, "prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True, **changes}


def texts(answers: list[Answer]) -> list[str]:
    assert [answer.status for answer in answers] == [200] * len(answers)
    return [answer.json["choices"][0]["text"] for answer in answers]


def streams(server: Server) -> list[Asking]:
    """A stream of each prompt, with tokens already and more to come."""
    started = [Asking(server, body(server, prompt, stream=True, max_tokens=TOKENS)) for prompt in PROMPTS]
    wait_until(lambda: all(len(each.events) > 1 for each in started), time.monotonic(), "first tokens", seconds=60)
    return started


def streamed(asking: Asking) -> str:
    return "".join(event["choices"][0]["text"] for event in asking.events)


@pytest.mark.full
def test_a_server_sleeps_and_wakes(checkpoint: Path, tmp_path: Path) -> None:
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    with running(tmp_path, str(checkpoint), *ENGINE, variables=variables) as server:
        expected = texts([server.post("/v1/completions", body(server, prompt)) for prompt in PROMPTS])
        whole = texts([server.post("/v1/completions", body(server, prompt, max_tokens=TOKENS)) for prompt in PROMPTS])
        for level in (1, 2):
            before = streams(server)
            assert server.post(f"/sleep?level={level}&mode=keep", {}).status == 200
            assert server.get("/is_sleeping").json == {"is_sleeping": True}
            during = [Asking(server, body(server, prompt)) for prompt in PROMPTS]
            assert server.post("/wake_up?tags=weights", {}).json["status"] == "sleeping"
            assert server.post("/collective_rpc", {"method": "reload_weights"}).status == 200
            assert not any(each.ended for each in (*before, *during))
            assert server.post("/wake_up?tags=kv_cache", {}).json["status"] == "awake"
            for each in (*before, *during):
                each.join(120)
                assert each.status == 200 and each.broken is None
            assert [json.loads(each.lines[0])["choices"][0]["text"] for each in during] == expected
            assert [streamed(each) for each in before] == whole
            assert texts([server.post("/v1/completions", body(server, prompt)) for prompt in PROMPTS]) == expected
        # Requests in flight end where nobody asked for them to be kept.
        cut = streams(server)
        assert server.post("/sleep?level=2", {}).status == 200
        assert server.post("/wake_up", {}).json["status"] == "awake"
        for each in cut:
            each.join(120)
            assert any('"finish_reason":"abort"' in line for line in each.lines)
        assert server.post("/reset_prefix_cache", {}).status == 200
        assert texts([server.post("/v1/completions", body(server, prompt)) for prompt in PROMPTS]) == expected
