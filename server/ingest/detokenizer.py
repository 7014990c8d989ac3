"""Answers to long prompts, whose text begins where the prompt's ends.

vLLM has the tokenizer decode the whole prompt twice, on the event loop, when an answer's first token comes: 0.25 s for a
million tokens. What a token adds to a text depends on a few tokens before it, so the end of the prompt is enough.
``patches.py`` records what is wrapped here.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from typing import Any

# Tokens of a prompt's end, decoded in less than a millisecond.
END = 1024


def decode_prompt_ends(detokenizer: Any) -> None:
    """Wrap the constructor of a class.

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
    """The last token IDs of a prompt, so many that what follows adds the same text to theirs as to that of all.

    Args:
        tokenizer: ``tokenizers.Tokenizer``.
        ids: Of the prompt.
        skip_special_tokens: Whether they have no text.

    Returns:
        :data:`END` of them. A stream starts anew where there is no text, or half of a character, before it: then as many
        more as it takes for another text, or all.
    """
    count = END
    while count < len(ids):
        # Bytes in a row become characters together, or none of them does.
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
