"""The miniature's tokenizer: byte-level BPE in which each digit, with a space before it, is a token of its own."""

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ropeswitch.models.miniature.chronicle import NAMES, PLACES, THINGS, TRADES, TRAITS, VERBS, chronicle
from ropeswitch.models.miniature.words import ADJECTIVES, COMMON_WORDS, NOUNS

VOCAB_SIZE = 1024
BOS, EOS, PAD = "<|bos|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
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


def train_tokenizer(corpus: list[str], alone: str, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the special tokens and the chat template of this project's models.

    Args:
        corpus: Texts whose words become tokens.
        alone: A regular expression; what it matches is never merged with what is beside it.
        vocab_size: Tokens at most.
        max_length: Tokens of the longest text, which the tokenizer tells its users.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(alone), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
