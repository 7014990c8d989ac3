"""Starts the detokenizer of a long prompt from the prompt's end only.

vLLM decodes the whole prompt twice, on the event loop, at an answer's first token: 0.25 s for a million tokens. The text
that a token adds depends on only a few tokens before it, so the end of the prompt is enough. ``patches.py`` records the
wrapped constructor.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from typing import Any

# Tokens at a prompt's end; decoding them takes less than a millisecond.
END = 1024


def decode_prompt_ends(detokenizer: Any) -> None:
    """Wrap the constructor of the detokenizer, so that it decodes only the end of a long prompt.

    Args:
        detokenizer: ``vllm.v1.engine.detokenizer.FastIncrementalDetokenizer``.
    """
    detokenizer.__init__ = _from_end(detokenizer.__init__)


def _from_end(upstream: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    @wraps(upstream)
    def initialize(self: Any, tokenizer: Any, request: Any) -> None:
        if request.prompt_token_ids is not None and len(request.prompt_token_ids) > END:
            ids = prompt_end(
                tokenizer._tokenizer, request.prompt_token_ids, request.sampling_params.skip_special_tokens
            )
            request = copy(request)
            request.prompt_token_ids = ids
        upstream(self, tokenizer, request)

    return initialize


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
