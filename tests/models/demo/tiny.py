"""A GGUF file of a tiny Llama with the demo model's kinds of tensors and its tokenizer's special tokens."""

from pathlib import Path

import gguf
import numpy as np

WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HIDDEN, HEADS, KV_HEADS, INTERMEDIATE = 64, 4, 2, 96
TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}"


def write(path: Path, seed: int = 0) -> None:
    """Write a Llama of two layers with random weights: Q4_1 matrices, a tied Q8_0 embedding, float32 norms."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = [*WORDS, *bytes_to_unicode().values(), "he", "ĠĠ"]
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    fields = {
        "name": "tiny", "block_count": 2, "context_length": 128, "embedding_length": HIDDEN, "head_count": HEADS,
        "feed_forward_length": INTERMEDIATE, "head_count_kv": KV_HEADS, "rope_freq_base": 100000.0,
        "layer_norm_rms_eps": 1e-5, "vocab_size": len(tokens), "tokenizer_model": "gpt2", "tokenizer_pre": "smollm",
        "token_list": tokens, "token_types": [3] * len(WORDS) + [1] * (len(tokens) - len(WORDS)),
        "token_merges": ["h e", "Ġ Ġ"], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "unk_token_id": 0,
        "chat_template": TEMPLATE,
    }  # fmt: skip
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)

    def matrix(name: str, rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> None:
        values = rng.normal(size=(rows, columns)).astype(np.float32) / 8
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    small = gguf.GGMLQuantizationType.Q4_1
    matrix("token_embd.weight", len(tokens), HIDDEN, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(2):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, np.float32))
        keys = HIDDEN * KV_HEADS // HEADS
        for name, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN), ("attn_k", keys, HIDDEN), ("attn_v", keys, HIDDEN), ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", INTERMEDIATE, HIDDEN), ("ffn_up", INTERMEDIATE, HIDDEN), ("ffn_down", HIDDEN, INTERMEDIATE),
        ):  # fmt: skip
            matrix(f"blk.{layer}.{name}.weight", rows, columns, small)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
