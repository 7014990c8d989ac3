"""A model's name is looked up once, in the cache and on the hub, before vLLM is imported."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ropeswitch.server.flags.hub import _without_users
from tests.server.running import PROGRAM, free_port

# Status and x-error-code by model, as the hub answers.
ANSWERS = {
    "a/missing": (404, "RepoNotFound"),
    "a/hidden": (401, "RepoNotFound"),
    "a/gated": (403, "GatedRepo"),
    "a/unrevised": (404, "RevisionNotFound"),
    "a/mirrored": (404, None),
    "a/served": (200, None),
    "a/mistral": (404, "EntryNotFound"),
    "a/broken": (500, None),
}


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        model = "/".join(self.path.split("/")[1:3])
        if model == "a/private":
            status, code = (200, None) if self.headers["authorization"] == "Bearer hf_right" else (401, "RepoNotFound")
        else:
            status, code = ANSWERS[model]
        self.send_response(status)
        if code:
            self.send_header("x-error-code", code)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served_hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        thread = Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{hub.server_address[1]}"
        finally:
            hub.shutdown()
            thread.join()


def asked(folder: Path, endpoint: str, *models: str, **variables: str) -> list[str]:
    """The refusal of each model, empty for none, and at the end which heavy packages were imported for it."""
    code = (
        "import sys\nfrom ropeswitch.factors.errors import UsageError\nfrom ropeswitch.server.flags.hub import check_hub\n"
        "for model in sys.argv[1:]:\n"
        "    try:\n        check_hub('MODEL', model)\n        print()\n"
        "    except UsageError as error:\n        print(error)\n"
        "print({'torch', 'vllm', 'transformers'} & set(sys.modules))"
    )
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))
    }
    kept |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-c", code, *models]
    done = subprocess.run(
        command, env=kept | variables, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_answers_of_the_hub(tmp_path: Path) -> None:
    with served_hub() as endpoint:
        lines = asked(tmp_path, endpoint, *ANSWERS, "a/private", "no:colon/x")
        allowed = asked(tmp_path, endpoint, "a/private", HF_TOKEN="hf_right")
    *refused, heavy = lines
    reasons = dict(zip([*ANSWERS, "a/private", "no:colon/x"], refused, strict=True))
    missing = "the hub has no such model, or it is private; check the name, or set HF_TOKEN to a token with access"
    for model in ("a/missing", "a/hidden", "a/mirrored", "a/private"):
        assert reasons[model].startswith(f"MODEL: {model!r} is not a local folder; {missing} (40"), model
    assert "accepted its terms" in reasons["a/gated"] and "check --revision" in reasons["a/unrevised"]
    # The hub serves these, or says nothing about them.
    assert {model for model, reason in reasons.items() if not reason} == {
        "a/served",
        "a/mistral",
        "a/broken",
        "no:colon/x",
    }
    assert allowed[0] == "" and heavy == "set()"


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / "config.json").write_text("{}")
    endpoint = f"http://127.0.0.1:{free_port()}"
    message = asked(tmp_path, endpoint, "mnii")[0]
    assert message.startswith(
        f"MODEL: 'mnii' is not a local folder; did you mean mini?; the hub at {endpoint} cannot be"
    )
    assert "HF_ENDPOINT" in message
    message = asked(tmp_path, endpoint, "a/b", HF_HUB_OFFLINE="1")[0]
    assert "it is not in the hub's cache, and HF_HUB_OFFLINE is set" in message


@pytest.mark.parametrize("user", ["user:hunter2", "hunter2"])
def test_the_endpoints_password_is_not_printed(tmp_path: Path, user: str) -> None:
    port = free_port()
    message = asked(tmp_path, f"http://{user}@127.0.0.1:{port}/path", "a/b")[0]
    assert f"the hub at http://127.0.0.1:{port} cannot be reached" in message
    assert "hunter2" not in message and "user" not in message
    assert _without_users(f"'{user}' in http://{user}@a/b", f"http://{user}@a").count("hunter2") == 0
    with served_hub() as served:
        refused = asked(tmp_path, served.replace("//", f"//{user}@"), "a/missing")[0]
    assert refused.endswith(f"(404 from {served})")


def test_a_model_in_the_cache_is_not_looked_up(tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--a--b"
    (model / "snapshots" / "1").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("1")
    (model / "snapshots" / "1" / "config.json").write_text("{}")
    assert asked(tmp_path, f"http://127.0.0.1:{free_port()}", "a/b")[0] == ""


def cached(folder: Path, repository: str, commit: str, name: str) -> None:
    model = folder / f"models--{repository.replace('/', '--')}"
    (model / "snapshots" / commit).mkdir(parents=True)
    (model / "snapshots" / commit / name).write_text("{}")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json"])
def test_a_tokenizer_in_the_cache_needs_no_config(tmp_path: Path, name: str) -> None:
    """Offline, and in the revision that vLLM takes for it: its own, or the model's."""
    commit = "1" * 40
    cached(tmp_path, "a/tok", commit, name)
    # Not for a model, which cannot do without its config.
    cached(tmp_path, "a/no-config", commit, name)
    cached(tmp_path, "a/model", commit, "config.json")
    code = (
        "import argparse, json, sys\nfrom ropeswitch.factors.errors import UsageError\n"
        "from ropeswitch.server.flags.hub import check_models\n"
        "for given in sys.argv[1:]:\n"
        "    try:\n        check_models(argparse.Namespace(**json.loads(given)))\n        print()\n"
        "    except UsageError as error:\n        print(error)\n"
    )
    flags = {
        "hf_token": None,
        "model": None,
        "model_tag": "a/model",
        "tokenizer": "a/tok",
        "download_dir": str(tmp_path),
    }
    flags |= {"revision": commit, "tokenizer_revision": None}
    given = [
        flags,
        flags | {"tokenizer_revision": commit},
        flags | {"tokenizer_revision": "2" * 40},
        flags | {"tokenizer": "a/none"},
        flags | {"model_tag": "a/no-config"},
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    command = [sys.executable, "-c", code, *map(json.dumps, given)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert [line.partition(" is not")[0] for line in done.stdout.splitlines()] == [
        "",
        "",
        "--tokenizer: 'a/tok'",
        "--tokenizer: 'a/none'",
        "MODEL: 'a/no-config'",
    ]


@pytest.mark.parametrize("flag", ["MODEL", "--tokenizer"])
def test_the_command_asks(tmp_path: Path, flag: str) -> None:
    model = Path(__file__).parents[3] / "models" / "longrope-mini"
    names = ["a/missing"] if flag == "MODEL" else [str(model), "--tokenizer", "a/missing"]
    with served_hub() as endpoint:
        variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
        command = [*PROGRAM, "serve", *names, "--port", "0"]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    asking, refusal = done.stderr.splitlines()
    assert done.returncode == 2 and asking == "ropeswitch: looking up 'a/missing' on the hub"
    assert refusal.startswith(f"ropeswitch: error: {flag}: 'a/missing' is not a local folder")


def test_ctrl_c_while_the_hub_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
        command = [*PROGRAM, "serve", "a/silent", "--port", "0"]
        with subprocess.Popen(command, env=os.environ | variables, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "ropeswitch: looking up 'a/silent' on the hub\n"
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == "ropeswitch: stopped\n"
            assert process.wait(60) == 130


def test_an_address_of_the_hub_that_is_none(tmp_path: Path) -> None:
    variables = {"HF_ENDPOINT": "http://me:secret@127.0.0.1:port", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [*PROGRAM, "serve", "a/b", "--port", "0"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = (
        "ropeswitch: error: HF_ENDPOINT: 'http://127.0.0.1:port' is not a valid URL; use one such as https://HOST:PORT"
    )
    assert (done.returncode, done.stderr) == (2, f"{expected}\n")
