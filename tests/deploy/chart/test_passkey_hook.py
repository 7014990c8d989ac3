"""The script of ``helm test`` against a scripted server that counts words."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart.helm import CHART, one, render
from tests.server.running import ENGINE, running

SCRIPT = CHART / "files" / "passkey.py"
SETS = [{"name": "short", "max_length": 256}, {"name": "long", "max_length": 1024}]


@dataclass
class Fake:
    """A server with the ladder SETS, and what is wrong with it."""

    sets: list[dict[str, Any]] = field(default_factory=lambda: SETS)
    max_model_len: int = 1024
    always: str | None = None
    reply: str = "The pass key is 48213."
    unready: int = 0
    key: str | None = None
    asked: list[int] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler, body: Any) -> tuple[int, dict[str, str], Any]:
        if handler.path == "/health/ready":
            self.unready -= 1
            return (503 if self.unready >= 0 else 200), {}, {}
        if self.key and handler.headers["Authorization"] != f"Bearer {self.key}":
            return 401, {}, {}
        if handler.path == "/v1/models":
            return 200, {}, {"data": [{"id": "model"}]}
        if handler.path == "/v1/rope":
            return 200, {}, {"sets": self.sets, "max_model_len": self.max_model_len}
        tokens = len(body["messages"][0]["content"].split()) + 7
        assert body["model"] == "model" and tokens + body["max_tokens"] <= self.max_model_len
        self.asked.append(tokens)
        name = self.always or next(each["name"] for each in self.sets if tokens <= each["max_length"])
        message = {"role": "assistant", "content": self.reply}
        usage = {"prompt_tokens": tokens}
        return 200, {"x-rope-factor-set": name}, {"usage": usage, "choices": [{"message": message}]}


@pytest.fixture
def serve() -> Iterator[Any]:
    running: list[ThreadingHTTPServer] = []

    def start(fake: Fake) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers["Content-Length"] or 0)
                status, headers, answer = fake.answer(self, json.loads(self.rfile.read(length)) if length else None)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            do_POST = do_GET

        running.append(server := ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=server.serve_forever).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def run(short: str, long: str = "", key_file: str = "", timeout: str = "30") -> subprocess.CompletedProcess[str]:
    environment = {"SHORT_URL": short, "LONG_URL": long or short, "API_KEY_FILE": key_file, "TIMEOUT": timeout}
    # As in the pod: without the project's packages.
    command = [sys.executable, "-I", str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_it_asks_on_both_sides_of_the_switch_once_the_server_is_ready(serve: Any) -> None:
    fake = Fake(unready=1)
    done = run(serve(fake))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok: ") == 2 and "not ready" in done.stdout
    assert min(fake.asked) < 100 and 256 < max(fake.asked) < 320
    short, long = Fake(max_model_len=256), Fake()
    assert run(serve(short), serve(long)).returncode == 0
    assert max(short.asked) < 256 < min(long.asked)


@pytest.mark.parametrize(
    "fake",
    [Fake(always="short"), Fake(always="long"), Fake(reply="The pass key is ??????.")],
    ids=["short", "long", "key"],
)
def test_a_wrong_set_or_key_fails(serve: Any, fake: Fake) -> None:
    done = run(serve(fake))
    assert done.returncode == 1 and "WRONG: " in done.stdout


@pytest.mark.parametrize(
    "fake", [Fake(sets=SETS[:1], max_model_len=256), Fake(max_model_len=256)], ids=["set", "length"]
)
def test_without_a_switch_there_is_one_side(serve: Any, fake: Fake) -> None:
    done = run(serve(fake))
    assert done.returncode == 0
    assert done.stdout.count("ok: ") == 1 and "nothing to ask above the switch" in done.stdout


def test_a_server_that_is_never_ready_fails_within_the_timeout(serve: Any) -> None:
    assert run(serve(Fake(unready=99)), timeout="0.1").returncode == 1


def test_it_sends_the_first_key_of_the_mounted_file(serve: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# of the tests\n\n  secret \nother\n")
    assert run(serve(Fake(key="secret")), key_file=str(keys)).returncode == 0
    assert run(serve(Fake(key="secret"))).returncode == 1


def test_the_pod_runs_this_script() -> None:
    script = one(render({}), "ConfigMap", "demo-ropeswitch-test")["data"]
    assert script == {"passkey.py": SCRIPT.read_text(encoding="utf-8")}


@pytest.mark.full
def test_the_bundled_model_answers(tmp_path: Path) -> None:
    with running(tmp_path, *ENGINE, "--kv-cache-memory-bytes", "1G") as server:
        done = run(server.url)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("ok: ") == 2
