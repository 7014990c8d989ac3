"""What vLLM's renderer does with long prompts, changed on the one object that an API server has.

``patches.py`` records every method that is wrapped here.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ropeswitch.server.ingest.request import LONG, VERY_LONG
from ropeswitch.server.ingest.text_process import TextProcess
from ropeswitch.server.ingest.token_ids import TokenIds


def take_long_prompts(renderer: Any, *, picklable: bool) -> None:
    """Have long texts tokenized beside the short ones, and token IDs of which all is known not looked at again.

    Args:
        renderer: ``vllm.renderers.base.BaseRenderer``.
        picklable: Whether its tokenizer may go to another process; the longest texts stay with a thread otherwise.
    """
    if renderer.tokenizer is not None:
        renderer._tokenize_prompt_async = _tokenizing(renderer, TextProcess(renderer.tokenizer) if picklable else None)
    renderer.validate_token_ids = _validating(renderer.validate_token_ids)


def _tokenizing(renderer: Any, process: TextProcess | None) -> Any:
    upstream = renderer._tokenize_prompt_async
    long = ThreadPoolExecutor(1, "tokenize-long")

    async def tokenize(prompt: Any, params: Any) -> Any:
        text = prompt["prompt"]
        if len(text) <= LONG:
            return await upstream(prompt, params)
        loop = asyncio.get_running_loop()
        if process is None or len(text) <= VERY_LONG or renderer._wants_offsets(prompt, params):
            return await loop.run_in_executor(long, renderer._tokenize_prompt, prompt, params)
        ids = await loop.run_in_executor(process.thread, process.token_ids, text, params.get_encode_kwargs())
        return {**prompt, "prompt_token_ids": ids}

    return tokenize


def _validating(upstream: Any) -> Any:
    def validate_token_ids(token_ids: Sequence[int], *, parameter: str | None = None) -> None:
        known = [token_ids.smallest, token_ids.largest] if isinstance(token_ids, TokenIds) else token_ids
        upstream(known, parameter=parameter)

    return validate_token_ids
