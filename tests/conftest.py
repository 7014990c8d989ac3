"""Environment of every test: no model hub, no usage reports, and no override of an engine's own KV cache size."""

import os

import pytest
from hypothesis import settings

from tests.gpu.settings import VARIABLES

# If set, vLLM ignores kv_cache_memory_bytes, and thus the small caches with which tests provoke preemptions.
os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ.update(VARIABLES)

# A test's first example includes the time of imports, so a deadline would be meaningless.
settings.register_profile("ropeswitch", deadline=None)
settings.load_profile("ropeswitch")

# Files that take minutes in `make test-full`. They start first, so that none runs alone at the end.
LONG = tuple(f"/test_{name}.py" for name in "runners model_modes run context_parallel image odd_bodies".split())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests for xdist, which gives a file to each process that is free."""
    items.sort(key=lambda item: not str(item.path).endswith(LONG))
