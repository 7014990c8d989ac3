"""Trains the demo model's tokenizer: byte-level BPE in which each digit is a token of its own."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ropeswitch.models.text import words_for_tokenizer

VOCAB_SIZE = 640
BOS, EOS, PAD = "<|bos|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of VOCAB_SIZE tokens; the same one at every call."""
    # "?" stands for an unreadable digit, so it is split off as the digits are.
    return train_tokenizer(words_for_tokenizer(), "[0-9?]", VOCAB_SIZE, 1024)


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


def save_tokenizer(folder: Path) -> None:
    build_tokenizer().save_pretrained(folder)
