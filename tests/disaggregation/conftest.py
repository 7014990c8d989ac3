"""These tests need NIXL, which the CPU environment lacks; ``make setup-nixl`` puts it into a folder of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Upstream compiles what log-probabilities are counted with, at the first request for them.
os.environ["TORCH_COMPILE_DISABLE"] = "1"

from tests.disaggregation.servers import Pair, pair
from tests.exactness.reference import Reference
from tests.server.checkpoint import phi3_with_tokenizer

try:
    import nixl  # noqa: F401
except ImportError as error:
    pytest.exit(f"tests/disaggregation needs NIXL ({error}): run make test-disaggregation", returncode=4)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phi3_with_tokenizer(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    return Reference.load(checkpoint)


@pytest.fixture(scope="session")
def engines(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("pair"), checkpoint) as started:
        yield started
