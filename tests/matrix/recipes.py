"""How the tiny checkpoint of each architecture is made, and which architectures there are."""

from dataclasses import replace

from tests.matrix import recipes_multimodal, recipes_wrapped_a_to_k, recipes_wrapped_l_to_z
from tests.matrix.recipe import (
    CHATGLM,
    DEEPSEEK_EXPERTS,
    DEEPSEEK_V4,
    EXPERTS,
    GEMMA3N,
    LATENT,
    LATENT_FIELDS,
    LFM2,
    MINIMAX_M3,
    PROPORTIONAL,
    QWEN4,
    STEP3,
    UNCACHED,
    Recipe,
)
from tests.matrix.verdicts import BACKEND, TEXT, WITHOUT_ROTATION, WRAPPED

_YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_GPT_OSS = _YARN | {"truncate": False, "rope_theta": 150000.0}
_MINISTRAL = _YARN | {"rope_theta": 1000000.0, "llama_4_scaling_beta": 0.1}
_ROUTING = "expert_routing"
_BAILING = EXPERTS | {
    "head_dim": 32, "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 64, "first_k_dense_replace": 1,
    "use_bias": False, "use_qkv_bias": False, "embedding_dropout": 0.0, "n_group": 1, "topk_group": 1,
    "score_function": "sigmoid", "moe_router_enable_expert_bias": True, "routed_scaling_factor": 1.0, "use_qk_norm": True,
    "rope_scaling": None, "rope_theta": 10000.0,
}  # fmt: skip
_CHATGLM = CHATGLM | {"rope_parameters": None, "max_position_embeddings": None, "num_key_value_heads": None}
# With the fields of the published config, which vLLM reads, beside transformers' own. Values are as wide as keys, as vLLM's
# CPU attention has them; local layers have a base of their own.
_MIMO_V2 = Recipe(
    config={
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "hybrid_layer_pattern": [0, 1] * 2,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "moe_layer_freq": [0, 1, 1, 1],
        "partial_rotary_factor": 0.5,
        "rope_theta": 5000000.0,
        "swa_rope_theta": 10000.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 32,
        "swa_v_head_dim": 32,
        "add_swa_attention_sink_bias": True,
        "sliding_window_size": 48,
        "layernorm_epsilon": 1e-5,
    }
)

RECIPES: dict[str, Recipe] = {
    "Gemma4ForCausalLM": Recipe(**PROPORTIONAL),
    "LLaMAForCausalLM": Recipe("LlamaForCausalLM"),
    "ExaoneMoEForCausalLM": Recipe("ExaoneMoeForCausalLM"),
    "AfmoeForCausalLM": Recipe(
        config={"score_func": "sigmoid", "route_norm": True, "route_scale": 1.0, "n_group": 1, "topk_group": 1}
    ),
    "AXK1ForCausalLM": Recipe(config={"topk_method": "noaux_tc", "first_k_dense_replace": 0}, engine=LATENT),
    "DeepseekV2ForCausalLM": Recipe(
        config={"num_experts_per_tok": 2, "q_lora_rank": None, "n_group": 1, "topk_group": 1}, engine=LATENT
    ),
    "DeepseekV3ForCausalLM": Recipe(config={"topk_method": "noaux_tc", "scoring_func": "sigmoid"}, engine=LATENT),
    "FalconForCausalLM": Recipe(config={"new_decoder_architecture": True}),
    "GraniteMoeHybridForCausalLM": Recipe(
        config={
            "num_hidden_layers": 4,
            "layer_types": ["mamba", "attention"] * 2,
            "position_embedding_type": "rope",
        },
        engine=UNCACHED,
    ),
    "FalconH1ForCausalLM": Recipe(engine=UNCACHED),
    "Glm4MoeForCausalLM": Recipe(config={"head_dim": 32}),
    "Glm4MoeLiteForCausalLM": Recipe(
        config={"first_k_dense_replace": 1, "mlp_layer_types": ["dense", "sparse"]}, engine=LATENT
    ),
    "GptOssForCausalLM": Recipe(config={"rope_parameters": _GPT_OSS}, trained=_GPT_OSS),
    "Ministral3ForCausalLM": Recipe(
        # Said in Mistral's way too, the only one that stock vLLM reads.
        config={
            "rope_parameters": _MINISTRAL,
            "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 32},
        },
        trained=_MINISTRAL,
    ),
    "LagunaForCausalLM": Recipe(replaced=_ROUTING),
    "Llama4ForCausalLM": Recipe(config={"num_experts_per_tok": 1}),
    "LongcatFlashForCausalLM": Recipe(
        config={
            "num_layers": 1,
            # transformers saves weights of such experts, which vLLM does not take.
            "zero_expert_num": 0,
            "zero_expert_type": "identity",
            "mla_scale_q_lora": True,
            "mla_scale_kv_lora": True,
        },
        engine=LATENT,
        replaced=_ROUTING,
    ),
    "LongcatFlashNgramForCausalLM": Recipe(
        "LongcatFlashForCausalLM",
        config={"ngram_vocab_size_ratio": 2, "emb_split_num": 2, "emb_neighbor_num": 3},
        engine=LATENT,
    ),
    "MiniMaxM2ForCausalLM": Recipe(
        config={
            "use_routing_bias": True,
            "scoring_func": "sigmoid",
            "rotary_dim": 16,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": 0.5},
        },
        replaced=_ROUTING,
    ),
    "HYV3ForCausalLM": Recipe(config={"first_k_dense_replace": 1, "expert_hidden_dim": 64, "route_norm": True}),
    "MiniCPM3ForCausalLM": Recipe(config={"kv_lora_rank": 64, "qk_rope_head_dim": 32}),
    "Qwen3NextForCausalLM": Recipe(engine=UNCACHED, replaced="delta_rule"),
    "Qwen3_5ForCausalLM": Recipe(engine=UNCACHED, replaced="delta_rule"),
    "Qwen3_5MoeForCausalLM": Recipe(engine=UNCACHED, replaced="delta_rule"),
    "OlmoHybridForCausalLM": Recipe(engine=UNCACHED, replaced="delta_rule"),
    # Without a class in transformers.
    "BailingMoeForCausalLM": Recipe(fields=_BAILING),
    "BailingMoeV2ForCausalLM": Recipe(fields=_BAILING),
    "BailingMoeV2_5ForCausalLM": Recipe(
        fields=_BAILING
        | LATENT_FIELDS
        | {
            "model_type": "bailing_hybrid",
            "layer_group_size": 2,
            "num_hidden_layers": 4,
            "head_dim": 128,
            "partial_rotary_factor": 0.5,
            "group_norm_size": 4,
        },
        engine=LATENT | UNCACHED,
        replaced="lightning, latent_decoding",
    ),
    "ChatGLMModel": Recipe(fields=_CHATGLM, forced=10000.0),
    "ChatGLMForConditionalGeneration": Recipe(fields=_CHATGLM, forced=10000.0),
    "DeciLMForCausalLM": Recipe(
        fields={
            "model_type": "nemotron-nas",
            "block_configs": [
                {"attention": {"no_op": False, "n_heads_in_group": 2}, "ffn": {"no_op": False, "ffn_mult": 1.3}}
            ]
            * 2,
            "num_key_value_heads_per_layer": [2, 2],
        }
    ),
    "DeepseekV4ForCausalLM": Recipe(fields=DEEPSEEK_V4 | {"model_type": "deepseek_v4"}, engine={"dtype": "bfloat16"}),
    "DeepseekV41ForCausalLM": Recipe(
        fields={
            "model_type": "deepseek_v41",
            "text_config": DEEPSEEK_V4,
            "vision_config": {"num_hidden_layers": 1},
        },
        engine={"dtype": "bfloat16"},
    ),
    "MiniMaxM3SparseForCausalLM": Recipe(fields=MINIMAX_M3, engine={"dtype": "bfloat16"}),
    "DeepseekForCausalLM": Recipe(fields=DEEPSEEK_EXPERTS | {"moe_layer_freq": 1}),
    "ExaoneForCausalLM": Recipe(fields={"activation_function": "silu", "layer_norm_epsilon": 1e-5}),
    "InternLM2ForCausalLM": Recipe(fields={}),
    "InternLM3ForCausalLM": Recipe(fields={}),
    "IQuestCoderForCausalLM": Recipe(fields={}),
    "IQuestLoopCoderForCausalLM": Recipe(
        fields={"loop_num": 2, "loop_window_size": 32, "sliding_window": None, "max_window_layers": 2}
    ),
    "K2HorizonForCausalLM": Recipe(
        fields=EXPERTS
        | {
            "head_dim": 32,
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
            "num_shared_experts": 1,
            "layernorm_num_groups": 1,
            "query_key_norm": True,
            "rope_head_dim": 32,
            "router_scaling_factor": 1.0,
            "router_score_func": "sigmoid",
            "moe_gate_bias": False,
            "attention_gate_func": "softplus",
            "mova_num_experts": 0,
            "mova_num_experts_per_tok": 0,
        },
        replaced=_ROUTING,
    ),
    "MiMoForCausalLM": Recipe(fields={"num_nextn_predict_layers": 1}),
    "MiMoV2FlashForCausalLM": _MIMO_V2,
    "MiMoV2ForCausalLM": replace(_MIMO_V2, family="MiMoV2FlashForCausalLM"),
    "MiMoV2OmniForCausalLM": replace(
        _MIMO_V2,
        family="MiMoV2FlashForCausalLM",
        config={**_MIMO_V2.config, "vision_config": {"depth": 1, "use_sink": False}},
    ),
    "MiniCPMForCausalLM": Recipe(fields={"dim_model_base": 64, "scale_depth": 1.4, "scale_emb": 1.0, "num_experts": 0}),
    "MistralLarge3ForCausalLM": Recipe("DeepseekV3ForCausalLM", engine=LATENT),
    "OrionForCausalLM": Recipe(fields={}),
    "PanguEmbeddedForCausalLM": Recipe(fields={"bias": False}),
    "PanguProMoEV2ForCausalLM": Recipe(fields=DEEPSEEK_EXPERTS | {"head_dim": 32, "routed_scaling_factor": 1.0}),
    "PanguUltraMoEForCausalLM": Recipe(
        fields=LATENT_FIELDS
        | DEEPSEEK_EXPERTS
        | {"model_type": "pangu_ultra_moe", "routed_scaling_factor": 1.0, "sandwich_norm": True},
        engine=LATENT,
        forced=10000.0,
    ),
    "Param2MoEForCausalLM": Recipe(fields=_BAILING),
    "PhiMoEForCausalLM": Recipe(fields={"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Plamo3ForCausalLM": Recipe(
        fields={
            "head_dim": 32,
            "interleaved_sliding_window": [48, None],
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_local_theta": 10000,
            "rope_theta": 1000000.0,
            "window_size": 48,
        }
    ),
    "Rnj1ForCausalLM": Recipe(
        "Gemma3ForCausalLM",
        config={
            "num_hidden_layers": 4,
            "layer_types": ["chunked_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "chunked_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        replaced="chunked_attention",
    ),
    "SarvamMoEForCausalLM": Recipe(fields=_BAILING),
    # Its heads are as wide as a cached latent with its rotated part, as published.
    "SarvamMLAForCausalLM": Recipe(
        fields=_BAILING | LATENT_FIELDS | {"head_dim": 576, "q_lora_rank": None}, engine=LATENT
    ),
    "SolarForCausalLM": Recipe(
        fields={f"bskcn_{place}": [1 + (place > 2)] for place in range(1, 5)}
        | {"bskcn_tv": [0.9, 0.8], "num_hidden_layers": 4}
    ),
    "Step3TextForCausalLM": Recipe(
        # The length of the layers' tables, whatever the longest sequence is.
        fields=STEP3 | {"max_position_embedding": 512, "norm_expert_weight": True}
    ),
    "TeleChat2ForCausalLM": Recipe(
        fields={"n_head": 4, "n_layer": 2, "ffn_hidden_size": 160, "layer_norm_epsilon": 1e-6}
    ),
    "TeleChat3ForCausalLM": Recipe(fields={}),
    "TeleFLMForCausalLM": Recipe(fields={"use_mup": False}),
    "DbrxForCausalLM": Recipe(
        config={"attn_config": {"kv_n_heads": 2, "rope_theta": 500000.0, "clip_qkv": 8.0}}, forced=500000.0
    ),
    "Gemma3nForCausalLM": Recipe(config=GEMMA3N),
    "GPTJForCausalLM": Recipe(config={"rotary_dim": 16}),
    "Lfm2ForCausalLM": Recipe(config=LFM2),
    "Lfm2MoeForCausalLM": Recipe(config=LFM2),
    # vLLM prefills its prompts whole, and waits for ever for one that is longer than a step.
    "HrmTextForCausalLM": Recipe(config={"H_cycles": 1, "L_cycles": 1}, engine={"max_num_batched_tokens": 512}),
    "HunYuanDenseV1ForCausalLM": Recipe(config={"head_dim": 32}),
    "HunYuanMoEV1ForCausalLM": Recipe(config={"head_dim": 32}),
    "NemotronForCausalLM": Recipe(config={"num_key_value_heads": 2}),
    "Qwen4ExpForCausalLM": Recipe(config=QWEN4, engine={"dtype": "bfloat16"}),
    "Zamba2ForCausalLM": Recipe(
        config={
            "num_hidden_layers": 4,
            "layer_types": ["mamba", "hybrid"] * 2,
            "use_mem_rope": True,
            "num_key_value_heads": 4,
            "attention_hidden_size": 256,
            "attention_head_dim": 64,
            "n_mamba_heads": 4,
            "mamba_headdim": 64,
            "mamba_d_state": 16,
            "chunk_size": 32,
            "num_mem_blocks": 1,
            "hybrid_layer_ids": [1, 3],
            "kv_channels": 64,
        },
        engine=UNCACHED,
    ),
} | recipes_wrapped_a_to_k.RECIPES
RECIPES |= recipes_wrapped_l_to_z.RECIPES | recipes_multimodal.RECIPES


def architectures() -> dict[str, str]:
    """Every architecture of vLLM's registry that generates text, with its kind."""
    from vllm.model_executor.models import registry

    backend = {
        name: BACKEND
        for name in (*registry._TRANSFORMERS_SUPPORTED_MODELS, *registry._TRANSFORMERS_BACKEND_MODELS)
        if "Classification" not in name and "Embedding" not in name
    }
    text = dict.fromkeys(registry._TEXT_GENERATION_MODELS, TEXT)
    return text | dict.fromkeys(registry._MULTIMODAL_MODELS, WRAPPED) | backend


def rotating() -> dict[str, str]:
    """Those of :func:`architectures` that have rotary embeddings."""
    return {name: kind for name, kind in architectures().items() if name not in WITHOUT_ROTATION}
