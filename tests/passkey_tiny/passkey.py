"""Pass-key prompts of an exact token count, and the judgement of what a model replied to one."""

import random
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from transformers import PreTrainedTokenizerBase

from tests.passkey_tiny.text import Fact, random_digits, sentence

Messages: TypeAlias = list[dict[str, str]]
SentenceWriter: TypeAlias = Callable[[random.Random], str]
FILLER_WORD = " so"
INTRODUCTION = "Read this text."
REPLY_TOKENS = 44
"""max_tokens that holds a whole reply and the token that ends it."""
NUMBER = re.compile(r"[0-9?]+")


@lru_cache(maxsize=65536)
def piece_ids(tokenizer: PreTrainedTokenizerBase, piece: str) -> tuple[int, ...]:
    """Token ids of one piece of text, without special tokens added."""
    return tuple(tokenizer.encode(piece, add_special_tokens=False))


def filler(
    tokenizer: PreTrainedTokenizerBase,
    tokens: int,
    rng: random.Random,
    write: SentenceWriter = sentence,
) -> list[str]:
    """Pieces of filler text, `tokens` tokens in all; each piece begins with a space."""
    pieces = []
    while tokens > 0:
        piece = write(rng)
        length = len(piece_ids(tokenizer, piece))
        if length > tokens:
            piece, length = FILLER_WORD * tokens, tokens
        pieces.append(piece)
        tokens -= length
    return pieces


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Messages | str) -> list[int]:
    """Token ids a server makes of a prompt: the chat template for messages, bos + text for text."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)


def make_prompt(
    tokenizer: PreTrainedTokenizerBase,
    total_tokens: int,
    seed: int,
    *,
    chat: bool = True,
    depth: float | None = None,
) -> tuple[Messages | str, str]:
    """One pass key hidden in filler, then the question for it.

    Args:
        tokenizer: passkey-tiny's tokenizer.
        total_tokens: length of `prompt_ids` of the result, exactly, special tokens included.
        seed: the same seed gives the same prompt; another gives another key and another text.
        chat: messages for chat completions; otherwise one text for plain completions.
        depth: where the key stands, from 0 (start) to 1 (just before the question); random if None.

    Returns:
        The prompt (messages or text) and the key, a string of digits.

    Raises:
        ValueError: total_tokens is too small for a key and a question, or depth is not in [0, 1].
    """
    if depth is not None and not 0 <= depth <= 1:
        raise ValueError(f"depth is {depth}; it must be between 0 and 1")
    rng = random.Random(f"passkey-{seed}")
    fact = Fact("", random_digits(rng))
    share = rng.random() if depth is None else depth

    def prompt(before: int, after: int) -> Messages | str:
        pieces = [
            INTRODUCTION,
            *filler(tokenizer, before, rng),
            fact.statement,
            *filler(tokenizer, after, rng),
            fact.question,
        ]
        content = "".join(pieces)
        return [{"role": "user", "content": content}] if chat else content + "\n"

    smallest = len(prompt_ids(tokenizer, prompt(0, 0)))
    room = total_tokens - smallest
    if room < 0:
        raise ValueError(f"total_tokens is {total_tokens}; a pass-key prompt needs {smallest}")
    before = round(room * share)
    return prompt(before, room - before), fact.digits


def found(reply: str, digits: str) -> bool:
    """True if the reply states the key twice, as the model is trained to, and no other number."""
    return NUMBER.findall(reply) == [digits, digits]
