"""A tiny random Phi-3 with a byte tokenizer: one token per byte, so that a prompt is as long as its text."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.hf_config import ladder_from_config
from tests.exactness import checkpoints

SETS = ("short", "long")
EOS = 2
WINDOW = 256
MAXIMUM = 1024
SPECIAL = ["<pad>", "<bos>", "<eos>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and a plain chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", chat_template=CHAT_TEMPLATE
    )


def phi3_with_tokenizer(folder: Path, **changes: Any) -> Path:
    """Write the model and its tokenizer: sets short to 256 tokens and long to 1024; ``changes`` go into the config."""
    tokenizer = byte_tokenizer()
    checkpoints.phi3(folder, window=WINDOW, maximum=MAXIMUM, vocab_size=len(tokenizer), **changes)
    tokenizer.save_pretrained(folder)
    return folder


def ladder_of(checkpoint: Path) -> FactorLadder:
    """Its sets, for a comparison of a server with Hugging Face."""
    ladder = ladder_from_config(json.loads((checkpoint / "config.json").read_text()))
    assert ladder is not None and ladder.names == SETS
    return ladder
