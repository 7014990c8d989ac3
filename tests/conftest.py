"""Environment of every test: no model hub, no usage reports, and a KV cache that a small machine can hold."""

import os

from hypothesis import settings

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

# The first example of a test pays for imports, which says nothing about the code.
settings.register_profile("ropeswitch", deadline=None)
settings.load_profile("ropeswitch")
