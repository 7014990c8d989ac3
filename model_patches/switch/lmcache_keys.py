"""What LMCache keys the chunks of a request with, so that it never mixes up factor sets, client salts or adapters."""

import hashlib
import json
from typing import Any

# Of LMCache's `IPCCacheServerKey`, which raises for others in the engine's own loop.
LONGEST = 128
FORBIDDEN = frozenset("@/\\\x00")


def store_salt(request: Any) -> str:
    """The salt of a request's chunks: its ``cache_salt``, which names its factor set, where LMCache accepts that.

    A salt that LMCache would reject becomes a digest. So does one of a request with a LoRA adapter, whose name no key has.

    Args:
        request: ``vllm.v1.request.Request``.
    """
    salt: str = request.cache_salt
    adapter = request.lora_request and request.lora_request.lora_name
    if adapter is None and len(salt) <= LONGEST and not FORBIDDEN & set(salt):
        return salt
    return f"rope_set:{hashlib.sha256(json.dumps([salt, adapter]).encode()).hexdigest()}"
