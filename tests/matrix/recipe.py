"""What is not automatic about an architecture's tiny checkpoint, and fields and flags that several of them share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What latent attention needs in float32: a processor with AMX would get a kernel for bfloat16 only.
# That kernel takes whole prompts only.
LATENT = {"attention_backend": "CPU_MLA", "block_size": 16, "max_num_batched_tokens": 512}
# vLLM keeps no states of these recurrent layers for its prefix cache on CPUs.
UNCACHED = {"enable_prefix_caching": False}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
LATENT_FIELDS = {
    "q_lora_rank": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "num_key_value_heads": 4,
}  # fmt: skip
INDEXER = {
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 512, "indexer_compress_ratio": 4,
}  # fmt: skip
QWEN4 = INDEXER | {
    "output_gate_type": "sigmoid",
    "ple_embed_dim": 64,
    "ngram_vocab_size_base": 512,
    "split_ngram_parts": 4,
    "hc_lowrank": 32,
}
GEMMA3N = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 0,
    "intermediate_size": [160] * 4, "activation_sparsity_pattern": [0.0] * 4,
}  # fmt: skip
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
CHATGLM = {
    "model_type": "chatglm", "num_layers": 2, "padded_vocab_size": 512, "ffn_hidden_size": 160, "kv_channels": 32,
    "multi_query_attention": True, "multi_query_group_num": 2, "seq_length": 64, "original_rope": True, "rmsnorm": True,
    "add_bias_linear": False, "add_qkv_bias": True, "layernorm_epsilon": 1e-5,
}  # fmt: skip
DEEPSEEK_EXPERTS = {
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "norm_topk_prob": True, "first_k_dense_replace": 1,
}  # fmt: skip
MOONDREAM3 = {
    "dim": 128, "ff_dim": 160, "n_layers": 2, "vocab_size": 512, "max_context": 64, "n_heads": 4, "n_kv_heads": 4,
    "moe": {"start_layer": 1, "n_experts": 4, "n_experts_per_tok": 2, "expert_inner_dim": 64},
}  # fmt: skip
STEP3 = {
    "head_dim": 32, "moe_intermediate_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "share_expert_dim": 64,
    "share_q_dim": 64, "moe_layers_enum": "1",
}  # fmt: skip
# Of the sizes that vLLM's kernels are compiled for.
DEEPSEEK_V4 = {
    "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 64, "o_lora_rank": 64, "o_groups": 2,
    "num_hidden_layers": 3, "num_hash_layers": 1, "compress_ratios": [0, 4, 128], "compress_rope_theta": 160000.0,
    "sliding_window": 128, "index_n_heads": 4, "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rope_theta": 10000.0,
}  # fmt: skip
MINIMAX_M3 = {
    "model_type": "minimax_m3_vl",
    "text_config": {
        "head_dim": 128, "rotary_dim": 64, "partial_rotary_factor": 0.5, "rope_theta": 5000000.0,
        "dense_intermediate_size": 160, "shared_intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
        "moe_layer_freq": [0, 1], "hidden_act": "swigluoai",
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 2, "sparse_topk_blocks": 16,
            "sparse_block_size": 128, "sparse_disable_index_value": [0, 1], "sparse_score_type": "max",
            "sparse_init_block": 0, "sparse_local_block": 1, "sparse_attention_freq": [0, 1],
        },
    },
    "vision_config": {
        "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 1, "patch_size": 14,
        "image_size": 56, "num_channels": 3, "img_token_compression_config": {}, "projection_dim": 128,
        "layer_norm_eps": 1e-5, "rope_theta": 10000.0,
    },
}  # fmt: skip
LFM2 = {"conv_dim": 128, "block_dim": 128, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
# Heads of full attention rotate in part, in a way that transformers knows no YaRN for.
PROPORTIONAL: dict[str, Any] = {"trained": {"rope_type": "linear"}, "ladder": "pi:128,256"}


@dataclass(frozen=True)
class Recipe:
    """What is not automatic about one architecture.

    Attributes:
        family: The class of transformers; None where it is named as the architecture.
        config: Fields of its config, which replace the automatic ones; a mapping goes into a nested config.
        engine: Engine arguments, for stock vLLM and with a ladder.
        trained: YaRN's parameters in the config, where the model was trained with it; ``rope_type`` linear where positions
            are interpolated instead.
        ladder: As of ``--ladder``.
        fields: Of the config, where transformers has no class for the architecture and its weights are made in vLLM.
        tokens: Names that vLLM's code looks up in the tokenizer, which is left out where this is None; a mapping has them by
            the tokenizer's attributes.
        replaced: The modules of :mod:`tests.matrix`, with commas, that compute in torch what vLLM has no CPU kernel for in
            float32.
        missing: Why no checkpoint can be made.
        processor: What ``preprocessor_config.json`` holds, where vLLM reads it even for text alone.
        forced: The rotary base of the layers that a ladder scales, where stock vLLM has no YaRN for them: the reference is
            then a stock engine with each set's frequencies in these layers' tables.
    """

    family: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    trained: Mapping[str, Any] = field(default_factory=dict)
    ladder: str = "auto"
    fields: Mapping[str, Any] | None = None
    tokens: tuple[str, ...] | Mapping[str, str] | None = None
    replaced: str = ""
    missing: str = ""
    processor: Mapping[str, Any] | None = None
    forced: float | None = None


def mrope(*sections: int, theta: float = 1000000.0, **more: Any) -> dict[str, Any]:
    """Rotary parameters of M-RoPE, as published configs have them."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, "mrope_section": list(sections)} | more}


QWEN3_5 = mrope(2, 1, 1, theta=10000000.0, mrope_interleaved=True, partial_rotary_factor=0.25)
