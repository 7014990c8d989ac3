"""``vllm.renderers.base.BaseRenderer``: two methods of the API server's renderer wrapped for long prompts.

Long texts are tokenized apart from short ones. Token IDs that were checked when the body was parsed are not checked again.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ropeswitch.server.front.bodies.request import LONG
from ropeswitch.server.front.bodies.token_ids import TokenIds


def separate_long_prompts(renderer: Any) -> None:
    """Make a renderer tokenize long texts on another thread, and check only the range of token IDs that we parsed.

    Args:
        renderer: ``vllm.renderers.base.BaseRenderer``. Its ``_tokenize_prompt_async`` is replaced; upstream makes that
            attribute from a method and an executor.
    """
    renderer.validate_token_ids = _validating(renderer.validate_token_ids)
    if renderer.tokenizer is not None:
        renderer._tokenize_prompt_async = _tokenizing(renderer)


def _validating(upstream: Callable[..., None]) -> Callable[..., None]:
    def validate_token_ids(token_ids: Sequence[int], *, parameter: str | None = None) -> None:
        known = [token_ids.smallest, token_ids.largest] if isinstance(token_ids, TokenIds) else token_ids
        upstream(known, parameter=parameter)

    return validate_token_ids


def _tokenizing(renderer: Any) -> Any:
    upstream = renderer._tokenize_prompt_async
    long = ThreadPoolExecutor(1, "tokenize-long")

    async def tokenize(prompt: Any, params: Any) -> Any:
        if len(prompt["prompt"]) <= LONG:
            return await upstream(prompt, params)
        return await asyncio.get_running_loop().run_in_executor(long, renderer._tokenize_prompt, prompt, params)

    return tokenize
