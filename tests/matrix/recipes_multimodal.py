"""Recipes of multimodal models that transformers has a class for, and of the Transformers backend."""

from tests.matrix.recipe import (
    DEEPSEEK_V4,
    GEMMA3N,
    LFM2,
    MINIMAX_M3,
    PROPORTIONAL,
    QWEN3_5,
    QWEN4,
    UNCACHED,
    Recipe,
    mrope,
)

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
_BACKEND = {"model_impl": "transformers"}
_TEXT_ONLY = {"language_model_only": True}
_VIBE_VOICE = {"num_filters": 8, "depths": [1] * 7}

RECIPES: dict[str, Recipe] = {
    "Llama4ForConditionalGeneration": Recipe(config={"text_config": {"num_experts_per_tok": 1}}),
    "DeepseekV4ForConditionalGeneration": Recipe(
        fields=DEEPSEEK_V4 | {"model_type": "deepseek_v4", "vision_n_layers": 1}, engine={"dtype": "bfloat16"}
    ),
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
    # vLLM computes the embeddings that its layers add with those of images, so it is served with encoders.
    "Gemma3nForConditionalGeneration": Recipe(
        config={"text_config": GEMMA3N},
        engine={"language_model_only": False, "skip_mm_profiling": True},
        tokens={f"{name}_token": f"<{name}>" for name in ("audio", "boa", "eoa", "image", "boi", "eoi")}
        | {f"newlines_{count}": "\n" * count for count in range(1, 5)},
        processor={
            "processor_class": "Gemma3nProcessor",
            "image_processor_type": "SiglipImageProcessor",
            "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
        },
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
    "Lfm2VlForConditionalGeneration": Recipe(config={"text_config": LFM2}),
    "MiniMaxM3SparseForConditionalGeneration": Recipe(fields=MINIMAX_M3, engine={"dtype": "bfloat16"}),
    "Qwen4ExpForConditionalGeneration": Recipe(config={"text_config": QWEN4}, engine={"dtype": "bfloat16"}),
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
    "Gemma4ForConditionalGeneration": Recipe(config={"vision_config": {}}, **PROPORTIONAL),
    "Gemma4UnifiedForConditionalGeneration": Recipe(config={"vision_config": {}}, **PROPORTIONAL),
    "MuseGlimmerForConditionalGeneration": Recipe(config={"vision_config": {"output_dim": 512}}),
    "CohereCompassForConditionalGeneration": Recipe(
        config={
            "text_config": {
                "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
            },
            "tie_word_embeddings": True,
        }
    ),
}
