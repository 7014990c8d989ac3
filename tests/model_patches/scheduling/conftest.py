"""Simulations of one A100 with a target of 50 ms for a step."""

import pytest

from ropeswitch.deploy.plan.gpus import load
from tests.simulated import Builder, StepCosts

COSTS = StepCosts(load()["A100-80GB"], 16)
TARGET = 0.05


@pytest.fixture(scope="package")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(COSTS, tmp_path_factory.mktemp("model"))
