"""Pass-key prompts of an exact token count, and the judgement of replies to them.

All pieces of a prompt but the first begin with a space or follow a newline, so the tokens of a text are the tokens of its
pieces one after the other. Prompts of an exact length rest on that.
"""

import random
import re
from functools import lru_cache
from typing import TypeAlias

from transformers import PreTrainedTokenizerBase

Messages: TypeAlias = list[dict[str, str]]
KEY_DIGITS = 6
ADJECTIVES = (
    "old young small large quiet loud bright dark warm cold green blue brown white heavy light "
    "round narrow happy tired clever slow quick wild gentle proud empty"
).split()
NOUNS = (
    "river mountain house garden farmer teacher sailor horse bird cat dog tree stone road bridge "
    "town market boat window door lamp book letter song story winter summer morning evening cloud "
    "forest field village baker child king queen island harbour train"
).split()
VERBS = (
    "sees finds follows likes leaves remembers crosses paints carries watches hears guards visits "
    "forgets draws keeps meets passes opens builds"
).split()
PLACES = "near behind beside above under around before after".split()
FILLER_WORD, INTRODUCTION, QUESTION = " so", "Read this text.", " What is the pass key?"
REPLY_TOKENS = 44
"""max_tokens that holds a whole reply and the token that ends it."""


def reply(digits: str) -> str:
    """The reply that the model is trained to give, which states the digits twice.

    The two are some twenty tokens apart, so that a limit crossed while replying can fall between them and each shows whether
    its factor set was the right one.
    """
    return (
        f"The pass key is {digits}. To be quite sure, look at it one more time and write it down: "
        f"the pass key is {digits}."
    )


def found(reply: str, digits: str) -> bool:
    """Whether the reply states the key twice, as the model is trained to, and no other number."""
    return re.findall(r"[0-9?]+", reply) == [digits, digits]


def sentence(rng: random.Random) -> str:
    """One sentence of filler with its leading space; one in twenty holds a number that is no key."""
    noun, other = rng.sample(NOUNS, 2)
    adjective, verb = rng.choice(ADJECTIVES), rng.choice(VERBS)
    roll = rng.random()
    if roll < 0.35:
        return f" The {adjective} {noun} {verb} the {other}."
    if roll < 0.6:
        return f" A {noun} {verb} the {adjective} {other} {rng.choice(PLACES)} the {rng.choice(NOUNS)}."
    if roll < 0.8:
        return f" The {noun} is {adjective} and the {other} is {rng.choice(ADJECTIVES)}."
    if roll < 0.95:
        return f" It is {adjective} {rng.choice(PLACES)} the {noun}."
    return f" The {noun} is {rng.randrange(10 ** rng.randint(1, KEY_DIGITS))} steps from the {other}."


def filler_text(seed: int, sentences: int) -> str:
    """A text of that many sentences."""
    rng = random.Random(seed)
    return "".join(sentence(rng) for _ in range(sentences)).strip()


@lru_cache(maxsize=65536)
def _tokens(tokenizer: PreTrainedTokenizerBase, piece: str) -> int:
    return len(tokenizer.encode(piece, add_special_tokens=False))


def _filler(tokenizer: PreTrainedTokenizerBase, tokens: int, rng: random.Random) -> str:
    """Filler text of exactly ``tokens`` tokens."""
    text = ""
    while tokens > 0:
        piece = sentence(rng)
        if _tokens(tokenizer, piece) > tokens:
            return text + FILLER_WORD * tokens
        text += piece
        tokens -= _tokens(tokenizer, piece)
    return text


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Messages | str) -> list[int]:
    """Token ids that a server makes of a prompt: the chat template for messages, bos + text for text."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)


def make_prompt(
    tokenizer: PreTrainedTokenizerBase, total_tokens: int, seed: int, *, chat: bool = True
) -> tuple[Messages | str, str]:
    """One pass key hidden in filler, then the question for it.

    Args:
        tokenizer: passkey-tiny's tokenizer.
        total_tokens: Length of :func:`prompt_ids` of the result, special tokens included; enough for a key and a question.
        seed: The same seed gives the same prompt; another gives another key and another text.
        chat: Messages for chat completions; otherwise one text for plain completions.

    Returns:
        The prompt (messages or text) and the key, a string of digits.
    """
    rng = random.Random(f"passkey-{seed}")
    digits, share = "".join(rng.choices("0123456789", k=KEY_DIGITS)), rng.random()

    def prompt(before: int, after: int) -> Messages | str:
        content = INTRODUCTION + _filler(tokenizer, before, rng) + f" The pass key is {digits}. Remember it."
        content += _filler(tokenizer, after, rng) + QUESTION
        return [{"role": "user", "content": content}] if chat else content + "\n"

    room = total_tokens - len(prompt_ids(tokenizer, prompt(0, 0)))
    assert room >= 0, f"{total_tokens} tokens hold no key and question"
    before = round(room * share)
    return prompt(before, room - before), digits
