"""A random Phi-3 of one layer and one head, and a tokenizer of whole words: the least that attends over a million tokens."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Phi3ForCausalLM, PreTrainedTokenizerFast

from tests.exactness import checkpoints

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
SYLLABLES = ("ba", "de", "ki", "lo", "mu", "ne", "ru", "ta")
# Words of two syllables, all of four letters: a million of them and the spaces between are 5 MB of text.
WORDS = [a + b for a in SYLLABLES for b in SYLLABLES][: 64 - len(SPECIAL)]
VOCABULARY = len(SPECIAL) + len(WORDS)
# The smallest head that vLLM's attention for CPUs has.
HEAD = 32
PAIRS = HEAD // 2
# Queries and keys are so much larger than those of the tests of exactness: among a million keys, attention must still rest
# on a few, or it takes the mean of all of them and hardly knows how they were rotated.
SHARPNESS = 1.6


def write_model(folder: Path, limit: int, maximum: int) -> Path:
    """Write the model and its tokenizer."""
    rope = {"short_factor": checkpoints.factors(PAIRS, 1.0, 32.0), "long_factor": checkpoints.factors(PAIRS, 1.1, 64.0)}
    checkpoints.phi3(
        folder,
        window=limit,
        maximum=maximum,
        vocab_size=VOCABULARY,
        hidden_size=HEAD,
        intermediate_size=HEAD,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        rope=rope,
    )
    model = Phi3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        # The rows of queries and keys; those of values follow.
        model.model.layers[0].self_attn.qkv_proj.weight[: 2 * HEAD] *= SHARPNESS
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )


def random_tokens(count: int) -> list[int]:
    """Token ids of words, the same ones at every call."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(len(SPECIAL), VOCABULARY, (count,), generator=generator).tolist()


def text_of(tokens: Sequence[int]) -> str:
    """The text that has these tokens, but for special ones, which have none."""
    return " ".join(WORDS[token - len(SPECIAL)] for token in tokens if token >= len(SPECIAL))
