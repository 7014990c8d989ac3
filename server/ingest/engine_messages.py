"""Messages to the engine with long prompts, whose token IDs are bytes already.

vLLM's client encodes a request on the event loop, which takes 11 ms for a million token IDs, and the engine core decodes it
in 28 ms (``model_patches/serving/packed_prompt.py``). ``patches.py`` records what is wrapped here.
"""

from typing import Any

from ropeswitch.model_patches.serving.packed_prompt import packed
from ropeswitch.server.ingest.token_ids import TokenIds


def send_packed(client: Any) -> None:
    """Wrap a client's ``add_request_async``.

    Args:
        client: ``vllm.v1.engine.core_client.AsyncMPClient``.
    """
    upstream = client.add_request_async

    async def add_request_async(request: Any) -> None:
        ids = request.prompt_token_ids
        # Requests for pooling have no sampling parameters.
        if isinstance(ids, TokenIds) and ids.packed is not None and request.sampling_params is not None:
            # Who else needs the IDs, the output processor, has them already.
            request.sampling_params, request.prompt_token_ids = packed(request.sampling_params, ids.packed), []
            # Of several answers to a prompt, which are a request each, the others send the list.
            ids.packed = None
        await upstream(request)

    client.add_request_async = add_request_async
