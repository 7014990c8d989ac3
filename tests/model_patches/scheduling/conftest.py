"""Simulations with a target of 50 ms for a step."""

import pytest

from tests.simulated import Builder

TARGET = 0.05


@pytest.fixture(scope="package")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("model"))
