"""``vllm.renderers.base.BaseRenderer``: subclassed for long prompts, on the one object that an API server has.

Long texts are tokenized apart from short ones, the longest in a separate process (``text_process.py``). Token IDs that were
checked when the body was parsed are not checked again.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ropeswitch.server.in_place import become
from ropeswitch.server.ingest.request import LONG, VERY_LONG
from ropeswitch.server.ingest.text_process import TextProcess
from ropeswitch.server.ingest.token_ids import TokenIds


def take_long_prompts(renderer: Any, *, picklable: bool) -> None:
    """Make a renderer tokenize long texts elsewhere, and check only the smallest and largest of token IDs that we parsed.

    Args:
        renderer: ``vllm.renderers.base.BaseRenderer``. Its ``_tokenize_prompt_async`` is replaced; upstream makes that
            attribute from a method and an executor.
        picklable: Whether its tokenizer can be sent to another process; otherwise the longest texts also use a thread.
    """
    become(renderer, _validating(type(renderer)))
    if renderer.tokenizer is not None:
        renderer._tokenize_prompt_async = _tokenizing(renderer, TextProcess(renderer.tokenizer) if picklable else None)


def _validating(upstream: Any) -> type:
    """Return a subclass of one of the many classes that upstream derives from ``BaseRenderer``."""

    class LongPromptRenderer(upstream):
        def validate_token_ids(self, token_ids: Sequence[int], *, parameter: str | None = None) -> None:
            known = [token_ids.smallest, token_ids.largest] if isinstance(token_ids, TokenIds) else token_ids
            super().validate_token_ids(known, parameter=parameter)

    return LongPromptRenderer


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
