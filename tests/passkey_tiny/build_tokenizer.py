"""Trains the demo model's tokenizer: byte-level BPE in which each digit is a token of its own."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from ropeswitch.models.miniature.tokenizer import train_tokenizer
from tests.passkey_tiny.text import words_for_tokenizer

VOCAB_SIZE = 640


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of VOCAB_SIZE tokens; the same one at every call."""
    # "?" stands for an unreadable digit, so it is split off as the digits are.
    return train_tokenizer(words_for_tokenizer(), "[0-9?]", VOCAB_SIZE, 1024)


def save_tokenizer(folder: Path) -> None:
    build_tokenizer().save_pretrained(folder)
