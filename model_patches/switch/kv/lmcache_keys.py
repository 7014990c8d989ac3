"""Builds the salt for a request's chunks in LMCache, so that factor sets, client salts and adapters are never mixed up."""

import hashlib
import json
from typing import Any

# Limits of LMCache's `IPCCacheServerKey`, which raises on other salts in the engine's own loop.
LONGEST = 128
FORBIDDEN = frozenset("@/\\\x00")


def store_salt(request: Any) -> str:
    """Return the salt for a request's chunks: its ``cache_salt``, which names its factor set, if LMCache accepts it.

    A salt that LMCache would reject becomes a digest. So does the salt of a request with a LoRA adapter, since LMCache's
    keys do not contain the adapter's name.

    Args:
        request: ``vllm.v1.request.Request``.
    """
    salt: str = request.cache_salt
    adapter = request.lora_request and request.lora_request.lora_name
    if adapter is None and len(salt) <= LONGEST and not FORBIDDEN & set(salt):
        return salt
    return f"rope_set:{hashlib.sha256(json.dumps([salt, adapter]).encode()).hexdigest()}"
