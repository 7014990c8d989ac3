"""Published configurations, cut to the fields that size a model, as on the Hugging Face hub."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import ROOT

Config = dict[str, Any]


def _plan(name: str) -> Config:
    """Return a config that docs/planning.md plans for."""
    content: Config = json.loads((ROOT / "docs" / "plans" / name / "config.json").read_text(encoding="utf-8"))
    return content


_COMMON: Config = {"rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16"}

LLAMA2_7B: Config = _plan("llama2-7b")
# v0.2: the first version without the sliding window.
MISTRAL_7B: Config = _plan("mistral-7b")
# The factors themselves do not matter to a plan: 48 of them, as three quarters of a head's 128 values are rotated.
_FACTORS = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0 + i for i in range(48)]}
PHI4_MINI: Config = _COMMON | {
    "architectures": ['Phi3ForCausalLM'], "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": True, "pad_token_id": 199999,
    "rope_scaling": _FACTORS,
}  # fmt: skip
QWEN2_5_7B: Config = _COMMON | {
    "architectures": ['Qwen2ForCausalLM'], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 131072, "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False,
    "max_window_layers": 28, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_4B: Config = _COMMON | {
    "architectures": ['Qwen3ForCausalLM'], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
    "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000,
    "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_8B: Config = QWEN3_4B | {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False}
QWEN3_30B_A3B: Config = _COMMON | {
    "architectures": ['Qwen3MoeForCausalLM'], "model_type": "qwen3_moe", "attention_bias": False,
    "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "mlp_only_layers": [],
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rope_theta": 1000000.0, "sliding_window": None, "use_sliding_window": False,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL_8X7B: Config = _COMMON | {
    "architectures": ['MixtralForCausalLM'], "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts_per_tok": 2,
    "num_local_experts": 8, "vocab_size": 32000, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
PHI35_MOE: Config = _COMMON | {
    "architectures": ['PhiMoEForCausalLM'], "model_type": "phimoe", "attention_bias": True, "hidden_size": 4096,
    "intermediate_size": 6400, "lm_head_bias": True, "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 16, "vocab_size": 32064,
    "max_position_embeddings": 131072, "rope_theta": 10000.0, "sliding_window": 131072, "tie_word_embeddings": False,
}  # fmt: skip
GRANITE_8B: Config = _COMMON | {
    "architectures": ['GraniteForCausalLM'], "model_type": "granite", "attention_bias": False, "mlp_bias": False,
    "hidden_size": 4096, "intermediate_size": 12800, "num_hidden_layers": 40, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 49155, "max_position_embeddings": 131072, "rope_theta": 10000000.0,
    "tie_word_embeddings": True, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125, "logits_scaling": 16.0,
}  # fmt: skip

# Made up: at TP 12 each KV head has 6 copies and 6 query heads, of which DCP 4 would take 4.
SIX_PER_HEAD = MISTRAL_7B | {
    "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 14400, "vocab_size": 32256,
}  # fmt: skip

DENSE = {
    "llama2-7b": LLAMA2_7B, "mistral-7b": MISTRAL_7B, "phi-4-mini": PHI4_MINI, "qwen2.5-7b": QWEN2_5_7B,
    "qwen3-4b": QWEN3_4B, "granite-8b": GRANITE_8B,
}  # fmt: skip
MOE = {"qwen3-30b-a3b": QWEN3_30B_A3B, "mixtral-8x7b": MIXTRAL_8X7B, "phi-3.5-moe": PHI35_MOE}
ALL = DENSE | MOE
# Input and layouts that the planner refuses, and why.
REFUSED = yaml.safe_load((Path(__file__).parent / "plan_refused.yaml").read_text(encoding="utf-8"))
