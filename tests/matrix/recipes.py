"""How the tiny checkpoint of each architecture is made, and which architectures there are."""

from dataclasses import replace
from typing import Any

from tests.matrix import recipes_wrapped_a_to_k, recipes_wrapped_l_to_z
from tests.matrix.recipe import EXPERTS, LATENT, LATENT_FIELDS, QWEN3_5, UNCACHED, Recipe, mrope
from tests.matrix.verdicts import BACKEND, TEXT, WITHOUT_ROTATION, WRAPPED

_QWEN2_VL = mrope(4, 6, 6)
_QWEN3_VL = mrope(6, 5, 5, theta=5000000.0, mrope_interleaved=True)
_XDROPE = {
    "rope_type": "xdrope", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0, "xdrope_section": [4, 4, 4, 4],
}  # fmt: skip
_LLAVA_IMAGES = {
    "processor_class": "LlavaProcessor", "image_processor_type": "CLIPImageProcessor", "patch_size": 32,
    "vision_feature_select_strategy": "default",
}  # fmt: skip
_GLM4V = mrope(2, 3, 3, theta=10000.0, partial_rotary_factor=0.5)
_INDEXER = {
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 512, "indexer_compress_ratio": 4,
}  # fmt: skip
_QWEN4 = _INDEXER | {
    "output_gate_type": "sigmoid",
    "ple_embed_dim": 64,
    "ngram_vocab_size_base": 512,
    "split_ngram_parts": 4,
    "hc_lowrank": 32,
}
_GEMMA3N = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 0,
    "intermediate_size": [160] * 4, "activation_sparsity_pattern": [0.0] * 4,
}  # fmt: skip
# Of the sizes that vLLM's kernels are compiled for.
_DEEPSEEK_V4 = {
    "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 64, "o_lora_rank": 64, "o_groups": 2,
    "num_hidden_layers": 3, "num_hash_layers": 1, "compress_ratios": [0, 4, 128], "compress_rope_theta": 160000.0,
    "sliding_window": 128, "index_n_heads": 4, "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rope_theta": 10000.0,
}  # fmt: skip
_MINIMAX_M3 = {
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
_LFM2 = {"conv_dim": 128, "block_dim": 128, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}

_YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_GPT_OSS = _YARN | {"truncate": False, "rope_theta": 150000.0}
_MINISTRAL = _YARN | {"rope_theta": 1000000.0, "llama_4_scaling_beta": 0.1}
# Heads of full attention rotate in part, in a way that transformers knows no YaRN for.
_PROPORTIONAL: dict[str, Any] = {"trained": {"rope_type": "linear"}, "ladder": "pi:128,256"}
_ROUTING = "expert_routing"
_BACKEND = {"model_impl": "transformers"}
_TEXT_ONLY = {"language_model_only": True}
_VIBE_VOICE = {"num_filters": 8, "depths": [1] * 7}
_BAILING = EXPERTS | {
    "head_dim": 32, "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 64, "first_k_dense_replace": 1,
    "use_bias": False, "use_qkv_bias": False, "embedding_dropout": 0.0, "n_group": 1, "topk_group": 1,
    "score_function": "sigmoid", "moe_router_enable_expert_bias": True, "routed_scaling_factor": 1.0, "use_qk_norm": True,
    "rope_scaling": None, "rope_theta": 10000.0,
}  # fmt: skip
_CHATGLM = {
    "model_type": "chatglm", "num_layers": 2, "padded_vocab_size": 512, "ffn_hidden_size": 160, "kv_channels": 32,
    "multi_query_attention": True, "multi_query_group_num": 2, "seq_length": 64, "original_rope": True, "rmsnorm": True,
    "add_bias_linear": False, "add_qkv_bias": True, "layernorm_epsilon": 1e-5, "rope_parameters": None,
    "max_position_embeddings": None, "num_key_value_heads": None,
}  # fmt: skip
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
    "Gemma4ForCausalLM": Recipe(**_PROPORTIONAL),
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
    "Llama4ForConditionalGeneration": Recipe(config={"text_config": {"num_experts_per_tok": 1}}),
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
    "DeepseekV4ForCausalLM": Recipe(fields=_DEEPSEEK_V4 | {"model_type": "deepseek_v4"}, engine={"dtype": "bfloat16"}),
    "DeepseekV4ForConditionalGeneration": Recipe(
        fields=_DEEPSEEK_V4 | {"model_type": "deepseek_v4", "vision_n_layers": 1}, engine={"dtype": "bfloat16"}
    ),
    "DeepseekV41ForCausalLM": Recipe(
        fields={
            "model_type": "deepseek_v41",
            "text_config": _DEEPSEEK_V4,
            "vision_config": {"num_hidden_layers": 1},
        },
        engine={"dtype": "bfloat16"},
    ),
    "MiniMaxM3SparseForCausalLM": Recipe(fields=_MINIMAX_M3, engine={"dtype": "bfloat16"}),
    "DeepseekForCausalLM": Recipe(
        fields={
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
        }
    ),
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
    "PanguProMoEV2ForCausalLM": Recipe(
        fields={
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "head_dim": 32,
            "routed_scaling_factor": 1.0,
        }
    ),
    "PanguUltraMoEForCausalLM": Recipe(
        fields=LATENT_FIELDS
        | {
            "model_type": "pangu_ultra_moe",
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.0,
            "sandwich_norm": True,
        },
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
        fields={
            "head_dim": 32,
            # Of the layers' tables, whatever the longest sequence is.
            "max_position_embedding": 512,
            "moe_intermediate_size": 64,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "norm_expert_weight": True,
            "share_expert_dim": 64,
            "share_q_dim": 64,
            "moe_layers_enum": "1",
        }
    ),
    "TeleChat2ForCausalLM": Recipe(
        fields={"n_head": 4, "n_layer": 2, "ffn_hidden_size": 160, "layer_norm_epsilon": 1e-6}
    ),
    "TeleChat3ForCausalLM": Recipe(fields={}),
    "TeleFLMForCausalLM": Recipe(fields={"use_mup": False}),
    "TransformersForCausalLM": Recipe("LlamaForCausalLM", engine=_BACKEND),
    "TransformersMoEForCausalLM": Recipe("Qwen3MoeForCausalLM", engine=_BACKEND),
    "TransformersMultiModalForCausalLM": Recipe(
        "LlavaForConditionalGeneration",
        engine=_BACKEND | _TEXT_ONLY,
        tokens=("<image>",),
        processor=_LLAVA_IMAGES,
    ),
    "TransformersMultiModalMoEForCausalLM": Recipe(
        "LlavaForConditionalGeneration",
        config={"text_config": {"model_type": "mixtral"}},
        engine=_BACKEND | _TEXT_ONLY,
        tokens=("<image>",),
        processor=_LLAVA_IMAGES,
    ),
    "Emu3ForConditionalGeneration": Recipe(
        config={"vocabulary_map": {"<image>": 440}, "vq_config": {"base_channels": 32, "codebook_size": 64}},
        engine=_TEXT_ONLY,
        tokens={f"{name}_token": f"<{name}>" for name in ("image", "boi", "eoi", "image_wrapper", "eof")},
        processor={"processor_class": "Emu3Processor", "image_processor_type": "Emu3ImageProcessor"},
    ),
    "HunYuanVLForConditionalGeneration": Recipe(
        config={"text_config": {"head_dim": 32, "rope_parameters": _XDROPE}},
        engine=_TEXT_ONLY,
        tokens={f"{name}_token": f"<{name}>" for name in ("image", "image_start", "image_end")},
        processor={"processor_class": "HunYuanVLProcessor", "image_processor_type": "HunYuanVLImageProcessor"},
    ),
    "VibeVoiceAsrForConditionalGeneration": Recipe(
        config={
            "acoustic_tokenizer_encoder_config": _VIBE_VOICE,
            "semantic_tokenizer_encoder_config": _VIBE_VOICE,
        },
        engine=_TEXT_ONLY,
        tokens=("<|box_start|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|AUDIO_DURATION|>"),
        processor={
            "processor_class": "VibeVoiceAsrProcessor",
            "feature_extractor_type": "VibeVoiceAcousticTokenizerFeatureExtractor",
        },
    ),
    "DbrxForCausalLM": Recipe(
        config={"attn_config": {"kv_n_heads": 2, "rope_theta": 500000.0, "clip_qkv": 8.0}}, forced=500000.0
    ),
    "Gemma3nForCausalLM": Recipe(config=_GEMMA3N),
    # vLLM computes the embeddings that its layers add with those of images, so it is served with encoders.
    "Gemma3nForConditionalGeneration": Recipe(
        config={"text_config": _GEMMA3N},
        engine={"language_model_only": False, "skip_mm_profiling": True},
        tokens={f"{name}_token": f"<{name}>" for name in ("audio", "boa", "eoa", "image", "boi", "eoi")}
        | {f"newlines_{count}": "\n" * count for count in range(1, 5)},
        processor={
            "processor_class": "Gemma3nProcessor",
            "image_processor_type": "SiglipImageProcessor",
            "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
        },
    ),
    "GPTJForCausalLM": Recipe(config={"rotary_dim": 16}),
    "Lfm2ForCausalLM": Recipe(config=_LFM2),
    "Lfm2MoeForCausalLM": Recipe(config=_LFM2),
    # vLLM prefills its prompts whole, and waits for ever for one that is longer than a step.
    "HrmTextForCausalLM": Recipe(config={"H_cycles": 1, "L_cycles": 1}, engine={"max_num_batched_tokens": 512}),
    "HunYuanDenseV1ForCausalLM": Recipe(config={"head_dim": 32}),
    "HunYuanMoEV1ForCausalLM": Recipe(config={"head_dim": 32}),
    "NemotronForCausalLM": Recipe(config={"num_key_value_heads": 2}),
    "Qwen4ExpForCausalLM": Recipe(config=_QWEN4, engine={"dtype": "bfloat16"}),
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
    "Qwen2VLForConditionalGeneration": Recipe(config={"text_config": _QWEN2_VL}),
    "Qwen2_5_VLForConditionalGeneration": Recipe(config={"text_config": _QWEN2_VL}),
    "Qwen3VLForConditionalGeneration": Recipe(config={"text_config": _QWEN3_VL}),
    "Qwen3VLMoeForConditionalGeneration": Recipe(config={"text_config": _QWEN3_VL | {"norm_topk_prob": True}}),
    "Qwen3_5ForConditionalGeneration": Recipe(config={"text_config": QWEN3_5}, engine=UNCACHED, replaced="delta_rule"),
    "Qwen3_5MoeForConditionalGeneration": Recipe(
        config={"text_config": QWEN3_5}, engine=UNCACHED, replaced="delta_rule"
    ),
    "MiniCPMV4_6ForConditionalGeneration": Recipe(engine=UNCACHED, replaced="delta_rule"),
    "MiniCPMV4_7ForConditionalGeneration": Recipe(engine=UNCACHED, replaced="delta_rule"),
    "Lfm2VlForConditionalGeneration": Recipe(config={"text_config": _LFM2}),
    "MiniMaxM3SparseForConditionalGeneration": Recipe(fields=_MINIMAX_M3, engine={"dtype": "bfloat16"}),
    "Qwen4ExpForConditionalGeneration": Recipe(config={"text_config": _QWEN4}, engine={"dtype": "bfloat16"}),
    "Glm4vForConditionalGeneration": Recipe(config={"text_config": _GLM4V}),
    "Glm4vMoeForConditionalGeneration": Recipe(config={"text_config": _GLM4V | {"head_dim": 32, "use_qk_norm": False}}),
    "GlmOcrForConditionalGeneration": Recipe(config={"text_config": _GLM4V}),
    "PaddleOCRVLForConditionalGeneration": Recipe(config={"text_config": mrope(4, 6, 6, theta=500000.0)}),
    "Granite4VisionForConditionalGeneration": Recipe(
        config={
            "text_config": {"model_type": "granite"},
            "deepstack_layer_map": [[-1, 0]],
            "spatial_target_layers": [0, 0, 1, 1],
            "downsample_rate": "1/2",
        }
    ),
    "Gemma4ForConditionalGeneration": Recipe(config={"vision_config": {}}, **_PROPORTIONAL),
    "Gemma4UnifiedForConditionalGeneration": Recipe(config={"vision_config": {}}, **_PROPORTIONAL),
    "MuseGlimmerForConditionalGeneration": Recipe(config={"vision_config": {"output_dim": 512}}),
    "Cosmos3EdgeForConditionalGeneration": Recipe(engine=UNCACHED),
    "CohereCompassForConditionalGeneration": Recipe(
        config={
            "text_config": {
                "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
            },
            "tie_word_embeddings": True,
        }
    ),
} | recipes_wrapped_a_to_k.RECIPES
RECIPES |= recipes_wrapped_l_to_z.RECIPES


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
