"""Long prompts on their way to the engine core, as bytes.

vLLM's messages hold a prompt as a list of numbers. An engine core takes 28 ms to decode a million of them, and 56 ms for two
million, in one call that keeps the interpreter's lock: its loop stands still. Bytes are decoded at once, and made into
numbers a piece at a time.
"""

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

# Under this name the bytes travel in the sampling parameters' ``extra_args``, which upstream passes on as they are.
FIELD = "ropeswitch_packed_prompt"
# Numbers that are made in one go, in about 2 ms; between two pieces other threads have their turn.
PIECE = 1 << 16


def packed(params: Any, tokens: bytes) -> Any:
    """A copy of ``vllm.SamplingParams`` that carries a prompt.

    Args:
        params: The request's.
        tokens: Its token IDs, uint32 of this machine.
    """
    params = copy(params)
    params.extra_args = {**(params.extra_args or {}), FIELD: tokens}
    return params


def unpack(request: Any) -> None:
    """Put the prompt that its sampling parameters carry into a request, ``vllm.v1.engine.EngineCoreRequest``."""
    extra = request.sampling_params.extra_args if request.sampling_params is not None else None
    # A client can put its own value there, but no bytes.
    if extra and isinstance(extra.get(FIELD), bytes):
        request.prompt_token_ids = numbers(extra.pop(FIELD))
        request.sampling_params.extra_args = extra or None


def numbers(tokens: bytes) -> list[int]:
    """Token IDs as a list, from uint32 of this machine."""
    array = np.frombuffer(tokens, np.uint32)
    result: list[int] = []
    for start in range(0, len(array), PIECE):
        result += array[start : start + PIECE].tolist()
    return result


def unpacking(upstream: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap ``EngineCore.preprocess_add_request``: a prompt that came as bytes is made into numbers first."""

    def preprocess_add_request(self: Any, request: Any) -> Any:
        unpack(request)
        return upstream(self, request)

    return preprocess_add_request
