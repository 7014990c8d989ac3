"""Keeps work on long prompts from blocking the event loop.

Wraps two methods of ``vllm.renderers.base.BaseRenderer``: long texts are tokenized apart from short ones, one of each client
at a time, and token IDs that were checked as the body was parsed are not checked again. A detokenizer starts from the few
tokens that the next text needs.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any
from weakref import WeakValueDictionary

from ropeswitch.server.front.bodies.parse import LONG, TokenIds
from ropeswitch.server.front.context import current

# Tokens at a prompt's end; decoding them takes less than a millisecond.
END = 1024
# Texts of more characters, which take seconds, are tokenized on another thread than those of more than LONG.
VERY_LONG = 1 << 20


def separate_long_prompts(renderer: Any, max_model_len: int, too_long: Callable[[int], Exception]) -> None:
    """Make a ``BaseRenderer`` tokenize long texts on other threads, and check only the range of token IDs that we parsed.

    Raises what ``too_long`` makes of a limit in characters for a text that is longer than any prompt of ``max_model_len``
    tokens, unless it is to be truncated.

    Upstream makes the attribute ``_tokenize_prompt_async`` from a method and an executor.
    """
    validate, tokenize = renderer.validate_token_ids, renderer._tokenize_prompt_async
    threads = [ThreadPoolExecutor(1, "tokenize-long"), ThreadPoolExecutor(1, "tokenize-very-long")]
    # A thread serves texts in order of arrival, so with one of each client it serves clients in turn.
    turns: WeakValueDictionary[tuple[int, bytes], asyncio.Lock] = WeakValueDictionary()

    def validate_token_ids(token_ids: Sequence[int], *, parameter: str | None = None) -> None:
        known = [token_ids.smallest, token_ids.largest] if isinstance(token_ids, TokenIds) else token_ids
        validate(known, parameter=parameter)

    async def tokenize_prompt(prompt: Any, params: Any) -> Any:
        if (length := len(prompt["prompt"])) <= LONG:
            return await tokenize(prompt, params)
        most = max_model_len * renderer.get_tokenizer().max_chars_per_token
        if length > most and params.truncate_prompt_tokens is None:
            raise too_long(most)
        thread, context = int(length > VERY_LONG), current.get()
        turn = turns.setdefault((thread, context.client if context is not None else b""), asyncio.Lock())
        async with turn:
            call = asyncio.get_running_loop().run_in_executor
            return await call(threads[thread], renderer._tokenize_prompt, prompt, params)

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
