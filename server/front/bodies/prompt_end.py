"""Cuts a long prompt to its end for the detokenizer: the text that a token adds depends on only a few tokens before it."""

from collections.abc import Sequence
from copy import copy
from typing import Any

# Tokens at a prompt's end; decoding them takes less than a millisecond.
END = 1024


def with_prompt_end(request: Any, tokenizer: Any) -> Any:
    """Return a ``vllm.v1.engine.EngineCoreRequest`` whose prompt is cut to its end; the same one if that is not needed.

    Args:
        request: The request.
        tokenizer: The model's tokenizer; only one of Hugging Face's in Rust decodes whole prompts.
    """
    ids, backend = request.prompt_token_ids, getattr(tokenizer, "_tokenizer", None)
    if ids is None or len(ids) <= END or request.sampling_params is None or not hasattr(backend, "id_to_token"):
        return request
    request = copy(request)
    request.prompt_token_ids = prompt_end(backend, ids, request.sampling_params.skip_special_tokens)
    return request


def prompt_end(tokenizer: Any, ids: Sequence[int], skip_special_tokens: bool) -> Sequence[int]:
    """Return the last token IDs of a prompt, enough that following tokens add the same text as after the whole prompt.

    Args:
        tokenizer: ``tokenizers.Tokenizer``.
        ids: The prompt's token IDs.
        skip_special_tokens: Whether special tokens have no text.

    Returns:
        The last :data:`END`. If their text is empty or ends in half a character, after which a stream would start afresh,
        more of them, up to all.
    """
    count = END
    while count < len(ids):
        # Consecutive byte tokens become characters together, or none of them does.
        while count < len(ids) and _is_byte(tokenizer.id_to_token(ids[-count])):
            count += 1
        text = tokenizer.decode(ids[-count:], skip_special_tokens=skip_special_tokens)
        if text and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ids[-count:]
        count *= 4
    return ids


def _is_byte(token: str | None) -> bool:
    """Whether a token stands for one byte, as in ``tokenizers.decoders.ByteFallback``."""
    return token is not None and len(token) == 6 and token.startswith("<0x")
