"""Keeps work on long prompts from blocking the event loop.

Wraps two methods of ``vllm.renderers.base.BaseRenderer``: long texts are tokenized apart from short ones, and token IDs that
were checked as the body was parsed are not checked again. A detokenizer starts from the few tokens that the next text needs.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

from ropeswitch.server.front.bodies.parse import LONG, TokenIds

# Tokens at a prompt's end; decoding them takes less than a millisecond.
END = 1024


def separate_long_prompts(renderer: Any) -> None:
    """Make a ``BaseRenderer`` tokenize long texts on another thread, and check only the range of token IDs that we parsed.

    Upstream makes the attribute ``_tokenize_prompt_async`` from a method and an executor.
    """
    validate, tokenize = renderer.validate_token_ids, renderer._tokenize_prompt_async
    long = ThreadPoolExecutor(1, "tokenize-long")

    def validate_token_ids(token_ids: Sequence[int], *, parameter: str | None = None) -> None:
        known = [token_ids.smallest, token_ids.largest] if isinstance(token_ids, TokenIds) else token_ids
        validate(known, parameter=parameter)

    async def tokenize_prompt(prompt: Any, params: Any) -> Any:
        if len(prompt["prompt"]) <= LONG:
            return await tokenize(prompt, params)
        return await asyncio.get_running_loop().run_in_executor(long, renderer._tokenize_prompt, prompt, params)

    renderer.validate_token_ids, renderer._tokenize_prompt_async = validate_token_ids, tokenize_prompt


def with_prompt_end(request: Any, tokenizer: Any) -> Any:
    """Return a ``vllm.v1.engine.EngineCoreRequest`` whose prompt is cut to its end; the same one if that is not needed.

    Only one of Hugging Face's tokenizers in Rust decodes whole prompts.
    """
    ids, backend = request.prompt_token_ids, getattr(tokenizer, "_tokenizer", None)
    if ids is None or len(ids) <= END or request.sampling_params is None or not hasattr(backend, "id_to_token"):
        return request
    request = copy(request)
    request.prompt_token_ids = prompt_end(backend, ids, request.sampling_params.skip_special_tokens)
    return request


def prompt_end(tokenizer: Any, ids: Sequence[int], skip_special_tokens: bool) -> Sequence[int]:
    """Return the last token IDs of a prompt, enough that following tokens add the same text as after the whole prompt.

    These are the last :data:`END`, or more if their text is empty or ends in half a character, after which a stream would
    start afresh. ``tokenizer`` is a ``tokenizers.Tokenizer``.
    """
    count = END
    while count < len(ids):
        # Consecutive byte tokens (`tokenizers.decoders.ByteFallback`) become characters together, or none of them does.
        while count < len(ids) and (tokenizer.id_to_token(ids[-count]) or "").startswith("<0x"):
            count += 1
        text = tokenizer.decode(ids[-count:], skip_special_tokens=skip_special_tokens)
        if text and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ids[-count:]
        count *= 4
    return ids
