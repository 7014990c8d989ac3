"""One server for all tests that need no flags of their own: starting an engine takes most of a minute."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from ropeswitch.server.cli import main
from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.running import ENGINE, Server, running

MODEL = "tiny"
# More than any test sends at once.
CONCURRENT = 200


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phi3_with_tokenizer(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--served-model-name", MODEL, "--enable-scale-out", "--enable-auto-tool-choice"]
    flags += ["--tool-call-parser", "hermes", "--max-sequences-per-key", str(CONCURRENT)]
    with running(tmp_path_factory.mktemp("server"), str(checkpoint), *ENGINE, *flags) as started:
        yield started


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs ``ropeswitch serve`` in this process, where vLLM is loaded once for all tests, and gives its message."""
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # These starts need no compiler, and the machine may have none.
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    # vLLM's log handler keeps the captured stream of the test that imported it first.
    monkeypatch.setattr("logging.raiseExceptions", False)
    # vLLM reads a config that it cannot read once more, two seconds later.
    monkeypatch.setattr("vllm.transformers_utils.repo_utils.time.sleep", lambda _: None)

    def run(*arguments: str) -> str:
        assert main(["serve", *arguments]) == 2
        lines = capsys.readouterr().err.splitlines()
        messages = [line for line in lines if line.startswith("ropeswitch: error: ")]
        assert len(messages) == 1 and not any("Traceback" in line for line in lines), lines
        return messages[0].removeprefix("ropeswitch: error: ")

    return run
