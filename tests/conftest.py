"""Environment of every test: no model hub, no usage reports, and no override of an engine's own KV cache size."""

import os

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
