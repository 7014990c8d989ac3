"""The script of ``helm test`` against a scripted server that counts words."""

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.deploy.chart.helm import one, render
from tests.loadtests.client.scripted import MODEL, Scripted, serving
from tests.server.running import ENGINE, running

# As the pod has it.
SCRIPT = one(render({}), "ConfigMap", "demo-ropeswitch-test")["data"]["passkey.py"]
SETS = [{"name": "short", "max_length": 256}, {"name": "long", "max_length": 1024}]


@dataclass
class Fake(Scripted):
    """A server with the ladder SETS, and what is wrong with it."""

    sets: list[dict[str, Any]] = field(default_factory=lambda: SETS)
    max_model_len: int = 1024
    always: str | None = None
    said: str = "The pass key is 48213."
    unready: int = 0
    key: str | None = None
    lengths: list[int] = field(default_factory=list)

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/health/ready", self._ready)
        return app

    async def _ready(self, request: web.Request) -> web.Response:
        self.unready -= 1
        return web.json_response({}, status=503 if self.unready >= 0 else 200)

    async def _rope(self, request: web.Request) -> web.Response:
        return web.json_response({"sets": self.sets, "max_model_len": self.max_model_len})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({}, status=401)
        body = await request.json()
        tokens = len(body["messages"][0]["content"].split()) + 7
        assert body["model"] == MODEL and tokens + body["max_tokens"] <= self.max_model_len
        self.lengths.append(tokens)
        name = self.always or next(each["name"] for each in self.sets if tokens <= each["max_length"])
        answer = {"usage": {"prompt_tokens": tokens}, "choices": [{"message": {"content": self.said}}]}
        return web.json_response(answer, headers={"x-rope-factor-set": name})


def run(
    short: Fake | str, long: Fake | None = None, key_file: str = "", timeout: str = "30"
) -> subprocess.CompletedProcess[str]:
    """Run the script as in the pod: without the project's packages."""
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(each)).url if isinstance(each, Fake) else each for each in (short, long)]
        variables = {"SHORT_URL": urls[0], "LONG_URL": urls[1] or urls[0], "API_KEY_FILE": key_file, "TIMEOUT": timeout}
        command = [sys.executable, "-I", "-c", SCRIPT]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)


def test_it_asks_on_both_sides_of_the_switch_once_the_server_is_ready_in_time() -> None:
    fake = Fake(unready=1)
    done = run(fake)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok: ") == 2 and "not ready" in done.stdout
    assert min(fake.lengths) < 100 and 256 < max(fake.lengths) < 320
    short, long = Fake(max_model_len=256), Fake()
    assert run(short, long).returncode == 0
    assert max(short.lengths) < 256 < min(long.lengths)
    assert run(Fake(unready=99), timeout="0.1").returncode == 1


@pytest.mark.parametrize(
    ("fake", "ok", "text"),
    [
        (Fake(always="short"), 1, "WRONG: "),
        (Fake(always="long"), 1, "WRONG: "),
        (Fake(said="The pass key is ??????."), 0, "WRONG: "),
        (Fake(sets=SETS[:1], max_model_len=256), 1, "nothing to ask above the switch"),
        (Fake(max_model_len=256), 1, "nothing to ask above the switch"),
    ],
    ids="short-long-key-set-length".split("-"),
)
def test_a_wrong_set_or_key_fails_and_without_a_switch_there_is_one_side(fake: Fake, ok: int, text: str) -> None:
    done = run(fake)
    assert done.returncode == (text == "WRONG: ") and text in done.stdout and done.stdout.count("ok: ") == ok


def test_it_sends_the_first_key_of_the_mounted_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# of the tests\n\n  secret \nother\n")
    assert run(Fake(key="secret"), key_file=str(keys)).returncode == 0
    assert run(Fake(key="secret")).returncode == 1


@pytest.mark.full
def test_the_bundled_model_answers(tmp_path: Path) -> None:
    with running(tmp_path, *ENGINE, "--kv-cache-memory-bytes", "1G") as server:
        done = run(server.url)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("ok: ") == 2
