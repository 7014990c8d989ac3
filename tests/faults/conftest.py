"""One server for all faults that it survives: the bundled model, and no flag but those that spare time and memory."""

from collections.abc import Iterator

import pytest

from tests.server.running import Server, running

MODEL = "passkey-tiny"
# Compiling the bundled model takes a minute and changes nothing here.
FLAGS = ["--enforce-eager"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("faulty"), *FLAGS) as started:
        yield started
