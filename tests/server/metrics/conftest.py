import pytest

from tests.server.metrics.processor import Server


@pytest.fixture
def server() -> Server:
    return Server()
