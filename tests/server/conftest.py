"""One server for all tests that need no flags of their own: starting an engine takes most of a minute."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.running import ENGINE, Server, running

MODEL = "tiny"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phi3_with_tokenizer(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--served-model-name", MODEL, "--enable-scale-out", "--enable-auto-tool-choice"]
    flags += ["--tool-call-parser", "hermes"]
    with running(tmp_path_factory.mktemp("server"), str(checkpoint), *ENGINE, *flags) as started:
        yield started


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened
