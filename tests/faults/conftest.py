"""One server for all faults that it survives."""

from collections.abc import Iterator

import pytest

from tests.passkey_tiny import SERVED
from tests.server.running import Server, running

MODEL = "passkey-tiny"
# In float32 a key that is computed in another batch is the same to within what no choice of a token depends on.
FLAGS = ["--enforce-eager", "--dtype", "float32", "--kv-cache-memory-bytes", str(1 << 30)]
# oneDNN keeps a compiled kernel for each of the last 1,024 shapes of a batch, and so grows for longer than a test lasts.
VARIABLES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("faulty"), *SERVED, *FLAGS, variables=VARIABLES) as started:
        yield started
