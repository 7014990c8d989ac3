"""These tests need torchvision, which the CPU environment lacks; ``make setup-vision`` puts it into a folder of its own."""

import pytest

from tests.exactness.conftest import start as start
from tests.exactness.conftest import start_processes as start_processes

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError) as error:
    pytest.exit(f"tests/vision needs torchvision ({error}): run make test-vision", returncode=4)
