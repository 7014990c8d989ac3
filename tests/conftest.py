"""Environment of every test: no model hub, no usage reports, and no override of an engine's own KV cache size."""

import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

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
LONG = ("exactness/test_runners.py", "exactness/test_model_modes.py", "server/test_vllm_serve.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests for xdist, which gives a file to each process that is free."""
    items.sort(key=lambda item: not str(item.path).endswith(LONG))


# Guards that stay entered: leaving one would exclude its keys again.
FORCED: list[Any] = []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let torch's dispatcher reach all that it reaches in a new thread, and warn if it does not.

    Rarely, after several compilations in one process, torch leaves keys excluded (those of tensors' Python classes, vmap and
    tracing among them); the next compilation then stops at an assertion. A server compiles once, at startup.
    """
    if (torch := sys.modules.get("torch")) is None:
        return
    excluded, at_first = torch._C._dispatch_tls_local_exclude_set(), _excluded_at_first()
    if left := (excluded - at_first).raw_repr():
        forced = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), at_first)
        forced.__enter__()
        FORCED.append(forced)
        keys = torch._C.DispatchKeySet.from_raw_repr(left)
        warnings.warn(f"{item.nodeid} left keys excluded from torch's dispatcher: {keys}", stacklevel=1)


@cache
def _excluded_at_first() -> Any:
    import torch

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(torch._C._dispatch_tls_local_exclude_set).result()
