"""One client's attacks on a real server, a second client that must get its answers, and a probe of its health."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.models import BUNDLED_MODEL
from tests.server.asking import wait_until
from tests.server.attacks import ATTACKS
from tests.server.running import Answer, Server, running

MODEL = BUNDLED_MODEL.name
SECONDS = 12.0
HEALTH_SECONDS = 1.0
# An answer of a few tokens, beside a batch that is as full as the server allows.
ANSWER_SECONDS = 20.0
FLAGS = ["--api-key", "attacker", "other", "--metrics-key", "scraper", "--shutdown-timeout", "5"]

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("walls"), *FLAGS) as server:
        yield server


@contextmanager
def repeating(ask: Callable[[], Answer], pause: float) -> Iterator[list[tuple[float, str]]]:
    """Ask again and again; the seconds of each answer, and its text unless its status is 200."""
    found: list[tuple[float, str]] = []
    over = threading.Event()

    def run() -> None:
        while not over.wait(pause):
            started = time.monotonic()
            answer = ask()
            found.append((time.monotonic() - started, "" if answer.status == 200 else answer.text))

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(run)
        try:
            yield found
        finally:
            over.set()
            asking.result()


def in_engine(server: Server) -> float:
    """The requests that run or wait in the engine."""
    page = server.get("/metrics", authorization="Bearer scraper").text.splitlines()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rpartition(" ")[2]) for line in page if line.startswith(names))


def attacking(server: Server, name: str, seconds: float) -> "subprocess.Popen[bytes]":
    program = [sys.executable, "-m", "tests.server.attacks", name, server.url, "attacker", MODEL, str(seconds)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("name", ATTACKS)
def test_another_client_gets_its_answers_and_health_within_a_second(attacked: Server, name: str) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    with (
        attacking(attacked, name, SECONDS) as attacker,
        repeating(lambda: attacked.get("/health/live"), 0.1) as probes,
        repeating(lambda: attacked.post("/v1/chat/completions", asked, authorization="Bearer other"), 0.5) as answers,
    ):
        printed, _ = attacker.communicate(timeout=SECONDS + 120)
    wait_until(lambda: in_engine(attacked) == 0, "the attacker's requests end", 30)
    health, answer = (max(seconds for seconds, _ in each) for each in (probes, answers))
    print(name, json.loads(printed), health, answer, len(answers))
    assert not [failure for _, failure in (*probes, *answers) if failure] and len(answers) > 1
    assert health < HEALTH_SECONDS and answer < ANSWER_SECONDS


CHAT = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 16}
SCHEMA = {"type": "object", "properties": {f"property_{index}": {"type": "string"} for index in range(200)}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": ["Go on."] * 128, "n": 8, "max_tokens": 4}),
        (
            "chat/completions",
            CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        ),
        ("chat/completions", CHAT | {"logprobs": True, "top_logprobs": 20, "max_tokens": 2000, "ignore_eos": True}),
        ("completions", {"prompt": [5] * 60_000, "max_tokens": 1}),
        ("tokenize", {"prompt": "word " * 100_000}),
    ],
)
def test_an_honest_client_is_not_refused(attacked: Server, path: str, body: dict[str, Any]) -> None:
    route = f"/v1/{path}" if "completions" in path else f"/{path}"
    answer = attacked.post(route, {"model": MODEL, **body}, authorization="Bearer other")
    assert answer.status == 200, answer.text


def test_it_stops_in_time_though_clients_read_nothing(tmp_path: Path) -> None:
    with running(tmp_path, *FLAGS) as server, attacking(server, "stopped_readers", SECONDS) as attacker:
        wait_until(lambda: in_engine(server) >= 30, "streams run")
        server.process.terminate()
        assert server.process.wait(30) == 0
        attacker.kill()
