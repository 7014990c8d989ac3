"""Environment of every test: no model hub, no usage reports, and no override of an engine's own KV cache size."""

import os
import sys
import warnings

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
LONG = ("exactness/test_runners.py", "exactness/test_runners_models.py", "server/test_vllm_serve.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests for xdist, which gives a file to each process that is free."""
    items.sort(key=lambda item: not str(item.path).endswith(LONG))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let torch's dispatcher reach tensors' Python classes again, and warn if it does not.

    Rarely, after several compilations in one process, torch leaves them excluded, for a reason not found; the next
    compilation then stops at an assertion of ``torch._subclasses.meta_utils``. A server compiles once, at startup.
    """
    if (torch := sys.modules.get("torch")) is None:
        return
    python = torch._C.DispatchKey.Python
    if torch._C._dispatch_tls_local_exclude_set().has(python):
        torch._C._dispatch_tls_set_dispatch_key_excluded(python, False)
        warnings.warn(f"{item.nodeid} left Python classes of tensors excluded from torch's dispatcher", stacklevel=1)
