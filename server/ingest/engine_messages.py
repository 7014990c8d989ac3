"""Messages to the engine with long prompts, whose token IDs were encoded elsewhere.

vLLM's client encodes a request on the event loop, which takes 11 ms for a million token IDs. ``patches.py`` records what is
wrapped here.
"""

from typing import Any

import msgspec

from ropeswitch.server.ingest.token_ids import TokenIds


def send_encoded(client: Any) -> None:
    """Wrap a client's ``add_request_async``.

    Args:
        client: ``vllm.v1.engine.core_client.AsyncMPClient``.
    """
    upstream = client.add_request_async

    async def add_request_async(request: Any) -> None:
        ids = request.prompt_token_ids
        if isinstance(ids, TokenIds) and ids.encoded is not None:
            # Who else needs the IDs, the output processor, has them already.
            request.prompt_token_ids = msgspec.Raw(ids.encoded)
            # Of several answers to a prompt, which are a request each, the others send the list.
            ids.encoded = None
        await upstream(request)

    client.add_request_async = add_request_async
