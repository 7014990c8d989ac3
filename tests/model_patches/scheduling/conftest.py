"""Engine configs for the fake engine of ``hash_engine.py``."""

from collections.abc import Callable
from functools import cache

import pytest
from vllm.config import VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from tests.exactness import checkpoints
from tests.model_patches.hash_engine import Mode, engine_config


@pytest.fixture(scope="package")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mode], VllmConfig]:
    """Makes each mode's engine config once."""
    init_none_hash(sha256)
    folder = checkpoints.phi3(tmp_path_factory.mktemp("phi3"))
    return cache(lambda mode: engine_config(folder, mode))
