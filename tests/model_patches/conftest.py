"""Engine configs for the fake engine of ``hash_engine.py``, and how often its requests are compared with their next set."""

from collections.abc import Callable
from functools import cache

import pytest
from vllm.config import VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from ropeswitch.model_patches.scheduling import next_set
from tests.exactness import checkpoints
from tests.model_patches.hash_engine import Mode, engine_config


@pytest.fixture(scope="package")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mode], VllmConfig]:
    """Makes each mode's engine config once."""
    init_none_hash(sha256)
    folder = checkpoints.phi3(tmp_path_factory.mktemp("phi3"))
    return cache(lambda mode: engine_config(folder, mode))


@pytest.fixture
def looks_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine's sets are a dozen steps apart."""
    monkeypatch.setattr(next_set, "LOOK_EVERY", 1)
