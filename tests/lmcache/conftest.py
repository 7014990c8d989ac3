"""These tests need LMCache, which ``make setup-lmcache`` puts into a folder of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.exactness.conftest import phi3 as phi3
from tests.exactness.conftest import phi3_reference as phi3_reference
from tests.exactness.conftest import start as start
from tests.lmcache.store import Store

try:
    import lmcache  # noqa: F401
except ImportError as error:
    pytest.exit(f"tests/lmcache needs LMCache ({error}): run make test-lmcache", returncode=4)


@pytest.fixture
def start_store(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Starts LMCache servers, each a process of its own, and ends them when the test is over."""
    started: list[Store] = []

    def start() -> Store:
        started.append(Store(tmp_path / f"server{len(started)}.log"))
        return started[-1]

    yield start
    for store in started:
        store.kill()
