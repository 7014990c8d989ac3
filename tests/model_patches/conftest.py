"""Engines of ``hash_engine.py``, and how often their requests are compared with their next set."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from ropeswitch.model_patches.scheduling import next_set
from tests.exactness import checkpoints
from tests.model_patches.hash_engine import MODES, Engine, Start, engine_config
from tests.model_patches.hash_tier import HashTier


@pytest.fixture(scope="package")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts engines in a mode of that name, with changes; each mode's config is made once."""
    init_none_hash(sha256)
    folder = checkpoints.phi3(tmp_path_factory.mktemp("phi3"))
    config = cache(lambda mode: engine_config(folder, mode))

    def start_engine(
        name: str, blocks: int = 60, tier: HashTier | None = None, kind: type[Engine] = Engine, **changes: Any
    ) -> Engine:
        mode = replace(MODES[name], **changes)
        return kind(config(mode), mode, blocks, tier)

    return start_engine


@pytest.fixture
def looks_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine's sets are a dozen steps apart."""
    monkeypatch.setattr(next_set, "LOOK_EVERY", 1)
