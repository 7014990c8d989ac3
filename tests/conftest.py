"""Environment of every test: no model hub, no usage reports, nothing that overrides an engine's own KV cache size."""

import os

from hypothesis import settings

from tests.gpu.settings import VARIABLES

# Where it is set, vLLM ignores kv_cache_memory_bytes, and with it the small caches that make engines preempt.
os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ.update(VARIABLES)

# The first example of a test pays for imports, which says nothing about the code.
settings.register_profile("ropeswitch", deadline=None)
settings.load_profile("ropeswitch")
