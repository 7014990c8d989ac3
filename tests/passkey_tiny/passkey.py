"""Pass-key prompts of an exact token count, and the judgement of what a model replied to one."""

import random
import re
from functools import lru_cache
from typing import TypeAlias

from transformers import PreTrainedTokenizerBase

from tests.passkey_tiny.text import QUESTION, random_digits, sentence, statement

Messages: TypeAlias = list[dict[str, str]]
FILLER_WORD = " so"
INTRODUCTION = "Read this text."
REPLY_TOKENS = 44
"""max_tokens that holds a whole reply and the token that ends it."""
NUMBER = re.compile(r"[0-9?]+")


@lru_cache(maxsize=65536)
def piece_ids(tokenizer: PreTrainedTokenizerBase, piece: str) -> tuple[int, ...]:
    """Token ids of one piece of text, without special tokens added."""
    return tuple(tokenizer.encode(piece, add_special_tokens=False))


def filler(tokenizer: PreTrainedTokenizerBase, tokens: int, rng: random.Random) -> list[str]:
    """Pieces of filler text, `tokens` tokens in all; each piece begins with a space."""
    pieces = []
    while tokens > 0:
        piece = sentence(rng)
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
    tokenizer: PreTrainedTokenizerBase, total_tokens: int, seed: int, *, chat: bool = True
) -> tuple[Messages | str, str]:
    """One pass key hidden in filler, then the question for it.

    Args:
        tokenizer: passkey-tiny's tokenizer.
        total_tokens: length of `prompt_ids` of the result, exactly, special tokens included.
        seed: the same seed gives the same prompt; another gives another key and another text.
        chat: messages for chat completions; otherwise one text for plain completions.

    Returns:
        The prompt (messages or text) and the key, a string of digits.

    Raises:
        ValueError: total_tokens is too small for a key and a question.
    """
    rng = random.Random(f"passkey-{seed}")
    digits = random_digits(rng)
    share = rng.random()

    def prompt(before: int, after: int) -> Messages | str:
        pieces = [
            INTRODUCTION,
            *filler(tokenizer, before, rng),
            statement(digits),
            *filler(tokenizer, after, rng),
            QUESTION,
        ]
        content = "".join(pieces)
        return [{"role": "user", "content": content}] if chat else content + "\n"

    smallest = len(prompt_ids(tokenizer, prompt(0, 0)))
    room = total_tokens - smallest
    if room < 0:
        raise ValueError(f"total_tokens is {total_tokens}; a pass-key prompt needs {smallest}")
    before = round(room * share)
    return prompt(before, room - before), digits


def found(reply: str, digits: str) -> bool:
    """True if the reply states the key twice, as the model is trained to, and no other number."""
    return NUMBER.findall(reply) == [digits, digits]
