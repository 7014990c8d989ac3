"""Text configs, as the model's ``config.json`` has them."""

from typing import Any

SHAPE: dict[str, Any] = {"hidden_size": 512, "num_attention_heads": 8, "head_dim": 64, "rope_theta": 1e6}


def config(model_type: str, longest: int, **scaling: Any) -> dict[str, Any]:
    """A config; ``scaling`` are the values of its ``rope_scaling``, none for plain RoPE."""
    values = SHAPE | {"model_type": model_type, "max_position_embeddings": longest}
    return values | ({"rope_scaling": scaling} if scaling else {})


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

QWEN3 = config("qwen3", 40960)
QWEN3_YARN = config("qwen3", 40960, **YARN)
LLAMA = config("llama", 8192)
LLAMA_YARN = config("llama", 131072, **YARN)
LLAMA_31 = config("llama", 131072, **LLAMA3, original_max_position_embeddings=8192)
LINEAR = config("llama", 4096, type="linear", factor=4.0)
# As published: 32,768 tokens of training, 131,072 with the factor.
GEMMA_3 = config("gemma3_text", 131072, rope_type="linear", factor=8.0)
LLAMA_4_SCOUT = config(
    "llama4_text", 10485760, rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
    original_max_position_embeddings=8192,
)  # fmt: skip
DYNAMIC = config("llama", 4096, type="dynamic", factor=4.0)
GPT_OSS = config(
    "gpt_oss", 131072, rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
    original_max_position_embeddings=4096,
)  # fmt: skip
LONGROPE = config(
    "phi3", 131072, rope_type="longrope", short_factor=[1.0] * 32, long_factor=[4.0] * 32,
    original_max_position_embeddings=4096,
)  # fmt: skip
