"""Recipes of models that transformers has no class for, most of them multimodal: names from A to K."""

from typing import Any

from tests.matrix.recipe import (
    CHATGLM,
    DEEPSEEK_EXPERTS,
    EXPERTS,
    LATENT,
    LATENT_FIELDS,
    LLAMA,
    MOONDREAM3,
    QWEN2,
    QWEN3,
    QWEN3_5,
    UNCACHED,
    Recipe,
    mrope,
)

_MOE: dict[str, Any] = DEEPSEEK_EXPERTS | {
    "moe_layer_freq": 1, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
}  # fmt: skip
_DEEPSEEK_V2 = _MOE | LATENT_FIELDS | {"q_lora_rank": None, "topk_method": "greedy", "scoring_func": "softmax"}
_INTERN_VIT = {
    "norm_type": "layer_norm", "qkv_bias": True, "qk_normalization": False, "initializer_factor": 1.0, "dropout": 0.0,
}  # fmt: skip
_INTERNVL = {
    "force_image_size": 56, "downsample_ratio": 0.5, "ps_version": "v2", "select_layer": -1, "min_dynamic_patch": 1,
    "max_dynamic_patch": 2, "dynamic_image_size": True, "use_thumbnail": True, "template": "internvl2_5",
}  # fmt: skip

_DEEPSEEK_OCR: dict[str, Any] = {
    "model_type": "deepseek_vl_v2",
    "tile_tag": "2D",
    # Without latent attention.
    "language_config": _MOE
    | dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 0)
    | {
        "architectures": ["DeepseekV2ForCausalLM"], "use_mla": False, "kv_lora_rank": None, "q_lora_rank": None,
        "topk_method": "greedy", "scoring_func": "softmax", "num_key_value_heads": 4,
    },
}  # fmt: skip
_BAILING_V3 = EXPERTS | LATENT_FIELDS | {
    "model_type": "bailing_hybrid", "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 64,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "layer_group_size": 2, "num_hidden_layers": 4,
    "head_dim": 32, "q_lora_rank": None, "score_function": "sigmoid", "routed_scaling_factor": 1.0,
    "no_kda_lora": True, "kda_safe_gate": True, "kda_lower_bound": -5.0, "short_conv_kernel_size": 4, "use_bias": False,
    "use_qkv_bias": False, "embedding_dropout": 0.0, "moe_router_enable_expert_bias": True,
}  # fmt: skip
_QWEN3_VIT = {
    "model_type": "qwen3_vl", "depth": 1, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "patch_size": 14,
    "out_hidden_size": 128, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
}  # fmt: skip
_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}

RECIPES: dict[str, Recipe] = {
    "BailingMoeV3ForCausalLM": Recipe(
        fields=_BAILING_V3, engine=LATENT | UNCACHED, replaced="kimi_delta_rule, latent_decoding"
    ),
    "BailingMoeV3VLForConditionalGeneration": Recipe(
        fields={
            "model_type": "bailing_moe_v3_vl",
            "text_config": _BAILING_V3,
            "vision_config": _QWEN3_VIT,
            "image_token_id": 440,
            "video_token_id": 441,
            "mrope_section": [12, 10, 10],
        },
        engine=LATENT | UNCACHED,
        replaced="kimi_delta_rule, latent_decoding",
    ),
    "BagelForConditionalGeneration": Recipe(fields={"model_type": "bagel", "llm_config": QWEN2, "vit_config": _SIGLIP}),
    "BeeForConditionalGeneration": Recipe(
        fields={
            "model_type": "bee",
            "text_config": QWEN3,
            "vision_config": _SIGLIP,
            "vision_feature_layer": -1,
            "projector_hidden_act": "gelu",
            "multimodal_projector_bias": True,
            "image_token_index": 440,
            "video_token_index": 441,
        }
    ),
    "Cosmos3ForConditionalGeneration": Recipe("Cosmos3OmniForConditionalGeneration"),
    "DeepseekOCRForCausalLM": Recipe(fields=_DEEPSEEK_OCR, tokens=("<image>",)),
    "DeepseekOCR2ForCausalLM": Recipe(fields=_DEEPSEEK_OCR, tokens=("<image>",)),
    "DotsOCRForCausalLM": Recipe(
        fields={"model_type": "dots_ocr", "image_token_id": 440, "video_token_id": 441, "vision_config": {}}
    ),
    "Dots3NoteForCausalLM": Recipe(
        fields=_DEEPSEEK_V2 | {"model_type": "dots3_note", "index_topk": 64, "index_n_heads": 4, "index_head_dim": 64},
        engine=LATENT,
    ),
    "Eagle2_5_VLForConditionalGeneration": Recipe(
        fields={
            "model_type": "eagle_2_5_vl",
            "text_config": QWEN2,
            "vision_config": _SIGLIP,
            "image_token_index": 440,
            "force_image_size": 56,
            "downsample_ratio": 0.5,
            "select_layer": -1,
        },
    ),
    "FireRedASR2ForConditionalGeneration": Recipe(
        fields={
            "model_type": "fireredasr2",
            "encoder_downsample_rate": 2,
            "audio_encoder_conf": {"idim": 80, "n_layers_enc": 1, "n_head": 2, "d_model": 64},
        }
    ),
    "FunASRForConditionalGeneration": Recipe(
        fields={
            "model_type": "funasr",
            "head_dim": 32,
            "audio_encoder_conf": {"num_blocks": 1, "tp_blocks": 1, "output_size": 512},
        }
    ),
    "FunAudioChatForConditionalGeneration": Recipe(
        fields={
            "model_type": "funaudiochat",
            "text_config": QWEN3,
            "audio_config": {"pad_token_id": 0, "codebook_size": 64, "output_dim": 128},
        }
    ),
    "GLM4VForCausalLM": Recipe(
        forced=10000.0,
        fields=CHATGLM
        | {
            "boi_token_id": 440,
            "eoi_token_id": 441,
            "vision_config": {
                "in_channels": 3,
                "hidden_size": 64,
                "patch_size": 14,
                "num_positions": 17,
                "num_heads": 2,
                "dropout_prob": 0.0,
                "hidden_act": "gelu",
                "intermediate_size": 96,
                "num_hidden_layers": 1,
                "layer_norm_eps": 1e-6,
                "scaling_factor": 8,
                "image_size": 56,
            },
        },
        tokens=("<|endoftext|>",),
    ),
    "H2OVLChatModel": Recipe(
        fields=_INTERNVL
        | {"model_type": "h2ovl_chat", "vision_config": _INTERN_VIT, "use_msac": False, "llm_config": LLAMA},
        tokens=(),
    ),
    "HCXVisionV2ForCausalLM": Recipe(
        fields={
            "model_type": "vlm",
            "text_config": {"model_type": "hyperclovax"},
            "image_token_id": 440,
            "video_token_id": 441,
            "vision_config": {"model_type": "qwen2_5_vl_visual"},
        },
        engine={"language_model_only": True},
        tokens=(),
        processor={"processor_class": "Qwen2_5_VLProcessor", "image_processor_type": "Qwen2VLImageProcessor"},
    ),
    "HfMoondream": Recipe(
        fields={
            "model_type": "moondream3",
            "config": {"text": MOONDREAM3},
        }
    ),
    "InternS1ForConditionalGeneration": Recipe("InternVLForConditionalGeneration"),
    # Fourier position embeddings.
    "InternS1ProForConditionalGeneration": Recipe(
        fields={
            "model_type": "interns1_pro",
            "text_config": EXPERTS
            | {
                "model_type": "qwen3_moe",
                "head_dim": 32,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 5000000.0,
                    "fope_init_factor": 0.5,
                    "fope_sep_head": True,
                },
            },
            "vision_config": _QWEN3_VIT,
            "image_token_id": 440,
            "video_token_id": 441,
        },
        tokens=(),
    ),
    "InternS2MobiusForConditionalGeneration": Recipe(
        "Qwen3_5MoeForConditionalGeneration",
        config={"text_config": QWEN3_5 | {"num_blocks": 2}},
        engine=UNCACHED,
        tokens=(),
        replaced="delta_rule",
    ),
    "InternS2PreviewForConditionalGeneration": Recipe(
        "Qwen3_5MoeForConditionalGeneration", config={"text_config": QWEN3_5}, engine=UNCACHED, replaced="delta_rule"
    ),
    "IsaacForConditionalGeneration": Recipe(fields={"model_type": "isaac", "head_dim": 32}, tokens=("<image>",)),
    "KananaVForConditionalGeneration": Recipe(
        fields={
            "model_type": "kanana-1.5-v",
            "text_config": LLAMA,
            "vision_config": {},
            "projector_config": {
                "merge_size": 2,
                "pos_emb": True,
                "pos_emb_size": 64,
                "encoder_hidden_size": 64,
                "hidden_size": 64,
                "output_hidden_size": 128,
                "depth": 1,
                "mlp_depth": 1,
            },
        }
    ),
    "KeyeForConditionalGeneration": Recipe(
        fields={"model_type": "Keye", "head_dim": 32, "vision_config": {}} | mrope(4, 6, 6)
    ),
    "KeyeVL1_5ForConditionalGeneration": Recipe(
        fields={"model_type": "KeyeVL1_5", "head_dim": 32, "vision_config": {}} | mrope(4, 6, 6)
    ),
    "KimiK25ForConditionalGeneration": Recipe("Kimi_K25ForConditionalGeneration", engine=LATENT),
    "DeepseekVLV2ForCausalLM": Recipe(
        fields={
            "model_type": "deepseek_vl_v2",
            "tile_tag": "2D",
            "language_config": _DEEPSEEK_V2 | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"},
        },
        engine=LATENT,
        tokens=("<image>",),
    ),
    # In the fields of the published config.
    "Ernie4_5_VLMoeForConditionalGeneration": Recipe(
        fields={
            "moe_num_experts": [4, 4],
            "moe_intermediate_size": [64, 64],
            "moe_layer_start_index": [1, 1],
            "moe_layer_end_index": [1, 1],
            "moe_layer_interval": 1,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "freq_allocation": 4,
            "im_patch_id": 440,
            "pixel_hidden_size": 64,
            "spatial_conv_size": 2,
            "temporal_conv_size": 2,
            "use_temporal_conv": True,
            "use_bias": False,
            "head_dim": 32,
            "vision_config": {},
        }
    ),
    "InternVLChatModel": Recipe(
        fields=_INTERNVL
        | {
            "model_type": "internvl_chat",
            "vision_config": _INTERN_VIT,
            "llm_config": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
        },
        tokens=(),
    ),
    "KimiVLForConditionalGeneration": Recipe(
        fields={
            "model_type": "kimi_vl",
            "vision_config": {"model_type": "moonvit"},
            "text_config": _DEEPSEEK_V2
            | {"model_type": "deepseek_v3", "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        },
        engine=LATENT,
    ),
}
