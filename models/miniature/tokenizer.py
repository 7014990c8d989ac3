"""The miniature's tokenizer: byte-level BPE in which each digit, with a space before it, is a token of its own."""

import random

from transformers import PreTrainedTokenizerFast

from ropeswitch.models.build_tokenizer import train_tokenizer
from ropeswitch.models.miniature.chronicle import NAMES, PLACES, THINGS, TRADES, TRAITS, VERBS, chronicle
from ropeswitch.models.text import ADJECTIVES, COMMON_WORDS, NOUNS

VOCAB_SIZE = 1024
PROMPT_WORDS = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about "
    "the important information there. The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
    "again. The pass key is 0. Remember it. 1 is the pass key. What is the pass key? The pass key is 2."
)
"""Mohtashami and Jaggi's pass-key prompt (arXiv:2305.16300), which the LongRoPE paper uses too."""


def corpus() -> list[str]:
    """Lines in which every word the miniature is trained on occurs."""
    rng = random.Random(0)
    lines = [chronicle(rng, 2000) for _ in range(300)]
    lines += [PROMPT_WORDS] * 100
    for words in (NAMES, PLACES, THINGS, TRADES, TRAITS, VERBS):
        lines += [f" {word}" for word in words] * 20
    lines += [f" {word}" for word in [*COMMON_WORDS, *ADJECTIVES, *NOUNS]] * 4
    return lines


def build_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most VOCAB_SIZE tokens for texts of up to max_length tokens; the same one at every call."""
    return train_tokenizer(corpus(), " ?[0-9]", VOCAB_SIZE, max_length)
