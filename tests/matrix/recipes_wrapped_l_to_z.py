"""Recipes of models that transformers has no class for, most of them multimodal: names from L to Z."""

from tests.matrix.recipe import EXPERTS, LLAMA, MOONDREAM3, QWEN2, QWEN3, STEP3, Recipe, mrope

_QWEN3_MOE = EXPERTS | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 32}
_QWEN3_OMNI = mrope(6, 5, 5, mrope_interleaved=True) | {"tie_word_embeddings": False}
_OMNI_VIT = {"image_size": 56, "apply_vit_abs_pos_embed": True}
_SIGLIP = {"model_type": "siglip_vision_model"}
_WHISPER = {"model_type": "whisper"}
# Of configs that InternVL's code reads.
_INTERNVL = {
    "force_image_size": None, "downsample_ratio": 0.5, "ps_version": "v2", "select_layer": -1, "vit_hidden_size": 64,
    "projector_hidden_size": 64,
}  # fmt: skip
_INTERN_VIT = {"norm_type": "layer_norm", "qkv_bias": True, "qk_normalization": False, "initializer_factor": 1.0}
_QWEN2_VIT = {"window_size": 56, "fullatt_block_indexes": [0], "hidden_act": "silu", "tokens_per_second": 2}
_QWEN2_VL_IMAGES = {"image_processor_type": "Qwen2VLImageProcessor"}
_OVIS_TOKENIZER = {
    "model_type": "siglip_visual_tokenizer", "backbone_config": _SIGLIP, "vocab_size": 512, "hidden_stride": 2,
}  # fmt: skip
_OVIS2_5 = {
    "visual_vocab_size": 512,
    "hidden_size": 128,
    "vit_config": {
        "model_type": "siglip2_navit", "num_patches": 16, "preserve_original_pe": True, "use_rope": True,
        "window_size": 56, "fullatt_block_indexes": None,
    },
}  # fmt: skip
_STEP3P5 = {
    "model_type": "step3p5", "num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2,
    "moe_intermediate_size": 64, "share_expert_dim": 64, "head_dim": 32, "rope_theta": 10000.0, "rope_parameters": None,
    "layer_types": ["full_attention", "full_attention"],
}  # fmt: skip
_STEP3 = STEP3 | {"architectures": ["Step3TextForCausalLM"]}
_PERCEPTION = {
    "width": 64, "layers": 1, "heads": 2, "output_dim": None, "use_abs_posemb": True, "use_cls_token": False,
    "use_rope2d": True, "use_ln_pre": True, "use_ln_post": False, "ls_init_value": None,
}  # fmt: skip
_MOSS_ENCODER = {
    "d_model": 64, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 96, "output_dim": 64,
    "downsample_hidden_size": 8, "deepstack_encoder_layer_indexes": [0],
}  # fmt: skip
_REALTIME_TEXT = {
    "model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": 32, "projection_size": 256,
    "ada_rms_norm_t_cond": True, "ada_rms_norm_t_cond_dim": 32,
}  # fmt: skip
_REALTIME_ENCODER = {
    "model_type": "whisper", "d_model": 64, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 96,
    "encoder_head_dim": 32, "num_mel_bins": 128, "window_size": 400, "hop_length": 160, "sampling_rate": 16000,
    "downsample_factor": 4, "block_pool_size": 4, "is_causal": True, "pos_embed": "rope", "sliding_window": 48,
    "max_position_embeddings": 256, "global_log_mel_max": 1.5,
}  # fmt: skip
_CONFORMER = {
    "attention_dim": 64, "attention_heads": 2, "input_size": 80, "chunk_size": -1, "left_chunk": 18, "num_blocks": 1,
    "linear_units": 96, "input_layer": "nemo_conv", "nemo_conv_settings": {"conv_channels": 64}, "time_reduction": 8,
    "relative_attention_bias_args": {"type": "t5"}, "encoder_embedding_config": {"input_size": 80},
}  # fmt: skip
_MOLMO = {
    "embedding_size": 512, "weight_tying": False, "qkv_bias": False, "attention_layer_norm": False,
    "layer_norm_eps": 1e-6, "layer_norm_type": "rms", "norm_after": False,
}  # fmt: skip
_MOLMO2_VIT = {
    "num_key_value_heads": 2, "head_dim": 32, "image_patch_size": 14, "image_num_pos": 16,
    "image_default_input_size": [56, 56], "float32_attention": True,
}  # fmt: skip
_MOLMO2_ADAPTER = {
    "vit_layers": [-1], "pooling_attention_mask": False, "hidden_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "intermediate_size": 96, "text_hidden_size": 128,
    "float32_attention": True, "attention_dropout": 0.0, "residual_dropout": 0.0, "image_feature_dropout": 0.0,
    "initializer_range": 0.02, "attn_implementation": "eager",
}  # fmt: skip
_MOLMO2_TEXT = {
    "head_dim": 32, "additional_vocab_size": 128, "qkv_bias": False, "rope_theta": 10000.0, "use_qk_norm": True,
    "qk_norm_type": "qwen3", "layer_norm_eps": 1e-6, "norm_after": False, "rope_scaling_layers": [0, 1],
}  # fmt: skip
_UNLIMITED = {
    "architectures": ["DeepseekV2ForCausalLM"], "use_mla": False, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1, "kv_lora_rank": None,
    "q_lora_rank": None, "qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "v_head_dim": 0, "topk_method": "greedy",
    "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
}  # fmt: skip

RECIPES: dict[str, Recipe] = {
    "VoxtralForConditionalGeneration": Recipe(
        fields={
            "text_config": LLAMA,
            "audio_config": _WHISPER
            | {
                "downsample_factor": 4,
                "window_size": 400,
                "hop_length": 160,
                "sampling_rate": 16000,
                "global_log_mel_max": None,
                "d_model": 64,
                "encoder_layers": 1,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 96,
                "max_source_positions": 32,
            },
        }
    ),
    # In the fields of the published config.
    "QianfanOCRForConditionalGeneration": Recipe(
        fields=_INTERNVL | {"model_type": "internvl_chat", "vision_config": _INTERN_VIT, "llm_config": QWEN3}
    ),
    "LightOnOCRForConditionalGeneration": Recipe(
        "LightOnOcrForConditionalGeneration",
        config={"vision_feature_layer": -1, "projector_hidden_act": "gelu", "multimodal_projector_bias": False},
    ),
    "Llama_Nemotron_Nano_VL": Recipe(
        fields=_INTERNVL | {"llm_config": LLAMA, "vision_config": {"model_type": "radio"}}
    ),
    "LlavaOnevision2ForConditionalGeneration": Recipe(fields={"text_config": QWEN3, "vision_config": {}}),
    # vLLM's model asks for torchaudio.
    "MiDashengLMModel": Recipe(fields={"model_type": "midashenglm", "text_config": {}}),
    "MiniCPMO": Recipe(
        fields={"version": "4.5", "query_num": 64, "vision_config": _SIGLIP, "audio_config": _WHISPER, "head_dim": 32}
        | {"drop_vision_last_layer": False, "audio_pool_step": 5}
    ),
    "MiniCPMV": Recipe(
        fields={"version": "2.6", "query_num": 64, "vision_config": _SIGLIP, "drop_vision_last_layer": False}
    ),
    "Molmo2ForConditionalGeneration": Recipe(
        fields={
            "text_config": _MOLMO2_TEXT,
            "vit_config": _MOLMO2_VIT,
            "adapter_config": _MOLMO2_ADAPTER,
            "image_patch_id": 440,
            "low_res_image_start_token_id": 441,
        }
    ),
    "MolmoForCausalLM": Recipe(fields=_MOLMO),
    "Moondream3ForCausalLM": Recipe(fields={"model_type": "moondream3", "config": {"text": MOONDREAM3}}),
    "MoonshotKimiaForCausalLM": Recipe(fields={}),
    "MossAudioModel": Recipe(
        fields={"language_config": QWEN3, "audio_config": _MOSS_ENCODER, "adapter_hidden_size": 64},
        # vLLM cannot leave this encoder out.
        engine={"language_model_only": False},
        tokens=(),
    ),
    "MossTranscribeDiarizeForConditionalGeneration": Recipe(
        fields={"model_type": "moss_transcribe_diarize", "text_config": QWEN3}
    ),
    "MuseGlimmerForCausalLM": Recipe(fields={"model_type": "muse_glimmer_text", "head_dim": 32, "sliding_window": 48}),
    "NanbeigeForCausalLM": Recipe(missing="the model's code is in the published checkpoint alone"),
    "NVLM_D": Recipe(fields=_INTERNVL | {"llm_config": QWEN2, "vision_config": _INTERN_VIT}),
    "OpenCUAForConditionalGeneration": Recipe(fields={"text_config": QWEN2, "vision_config": _QWEN2_VIT}),
    "OpenPanguVLForConditionalGeneration": Recipe(
        fields=mrope(4, 6, 6) | {"bias": False, "vision_config": _QWEN2_VIT},
        engine={"mm_encoder_attn_backend": "FLASH_ATTN"},
        tokens=("<|image_pad|>", "<|video_pad|>"),
        processor=_QWEN2_VL_IMAGES | {"processor_class": "Qwen2_5_VLProcessor"},
    ),
    "OpenVLAForActionPrediction": Recipe(fields={"model_type": "openvla", "text_config": LLAMA}),
    "Ovis": Recipe(
        fields={
            "model_type": "ovis",
            "llm_config": QWEN2,
            "hidden_size": 128,
            "visual_tokenizer_config": _OVIS_TOKENIZER,
        }
    ),
    "Ovis2_5": Recipe(fields=_OVIS2_5 | {"llm_config": QWEN3}, tokens=(), processor=_QWEN2_VL_IMAGES),
    "Ovis2_6_MoeForCausalLM": Recipe(
        fields=_OVIS2_5 | {"llm_config": _QWEN3_MOE},
        tokens=(),
        processor=_QWEN2_VL_IMAGES,
    ),
    "Ovis2_6ForCausalLM": Recipe(fields=_OVIS2_5 | {"llm_config": QWEN3}, tokens=(), processor=_QWEN2_VL_IMAGES),
    "Phi3VForCausalLM": Recipe(
        fields={
            "img_processor": {"name": "clip_vision_model", "image_dim_out": 1024, "num_img_tokens": 144},
            "embd_layer": {"use_hd_transform": True, "with_learnable_separator": True},
        }
    ),
    "Phi4ForCausalLMV": Recipe(fields={"vision_config": {"model_type": "siglip2_vision_model"}, "mm_hidden_size": 64}),
    "Phi4MMForCausalLM": Recipe(
        fields={
            "img_processor": {},
            "embd_layer": {
                "image_embd_layer": {"use_hd_transform": True, "with_learnable_separator": True},
                "audio_embd_layer": {"embedding_cls": "audio", "projection_cls": "mlp", "downsample_rate": 1},
            },
            "audio_processor": {"name": "cascades", "config": _CONFORMER},
        }
    ),
    "PixtralForConditionalGeneration": Recipe(
        fields={"text_config": LLAMA, "vision_config": {"rope_theta": 10000.0, "image_token_id": 440}}
    ),
    "Qwen2_5OmniModel": Recipe("Qwen2_5OmniForConditionalGeneration"),
    "Qwen3ASRRealtimeGeneration": Recipe("Qwen3ASRForConditionalGeneration"),
    "Qwen3OmniMoeForConditionalGeneration": Recipe(
        config={"thinker_config": {"vision_config": _OMNI_VIT, "text_config": _QWEN3_OMNI}}
    ),
    "RForConditionalGeneration": Recipe("LlavaOnevisionForConditionalGeneration"),
    "SkyworkR1VChatModel": Recipe(fields=_INTERNVL | {"llm_config": QWEN2, "vision_config": _INTERN_VIT}),
    "Step3p5ForCausalLM": Recipe(fields=_STEP3P5),
    "Step3VLForConditionalGeneration": Recipe(fields={"model_type": "step3_vl", "text_config": _STEP3}),
    # transformers' class drops fields of the published config that vLLM reads.
    "Step3p7ForConditionalGeneration": Recipe(
        fields={
            "text_config": _STEP3P5
            | {
                "model_type": "made-up",
                "architectures": ["Step3p5ForCausalLM"],
                "att_impl_type": "GQA",
                "norm_expert_weight": True,
                "need_fp32_gate": True,
                "use_moe_router_bias": True,
                "moe_router_scaling_factor": 1.0,
                "swiglu_limits": None,
                "swiglu_limits_shared": None,
                "moe_router_activation": "softmax",
                "attention_other_setting": None,
                "sliding_window": None,
            },
            "vision_config": _PERCEPTION,
            "projector_bias": False,
        }
    ),
    "StepVLForConditionalGeneration": Recipe(
        fields={"text_config": QWEN3, "vision_config": _PERCEPTION, "projector_bias": False}
    ),
    "UltravoxModel": Recipe(
        fields={"model_type": "ultravox", "text_config": LLAMA, "audio_config": _WHISPER, "vocab_size": 512}
    ),
    # It forgets what it generated more than 128 tokens ago, which no request here does; the CPU's attention could not.
    "UnlimitedOCRForCausalLM": Recipe(
        fields={
            "model_type": "unlimited_ocr",
            "tile_tag": "2D",
            "language_config": _UNLIMITED,
        },
        tokens=("<image>",),
    ),
    "VoxtralRealtimeGeneration": Recipe(
        fields={
            "text_config": _REALTIME_TEXT,
            "audio_config": _REALTIME_ENCODER,
        },
        engine={"tokenizer_mode": "mistral", "language_model_only": False},
        tokens=(),
    ),
}
