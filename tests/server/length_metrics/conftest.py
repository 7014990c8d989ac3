import pytest

from tests.server.length_metrics.processor import Server


@pytest.fixture
def server() -> Server:
    return Server()
