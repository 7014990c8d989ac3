"""Float32 products of Triton are exact in the processes of the tests, and of the servers that they start."""

import os

import pytest

from tests.gpu.settings import VARIABLES
from tests.server import running


def test_every_process_of_the_tests_multiplies_exactly() -> None:
    triton = pytest.importorskip("triton", reason="Triton has no build for this machine")
    assert triton.knobs.language.fp32_default == "ieee"
    assert os.environ.items() >= VARIABLES.items() and running.environment().items() >= VARIABLES.items()
