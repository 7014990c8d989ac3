"""A current config, without which vLLM builds none of its layers."""

from collections.abc import Iterator

import pytest
from vllm.config import VllmConfig, set_current_vllm_config


@pytest.fixture
def default_vllm_config() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield
