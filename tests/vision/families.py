"""Tiny checkpoints of models with a vision encoder, and the static scaling of each set of their text model's ladder."""

from pathlib import Path
from typing import Any

import transformers

from tests.exactness.auto_cases import PLAIN, WINDOW, yarn_sets
from tests.exactness.checkpoints import VOCAB
from tests.exactness.families import HEAD, LLAMA4, LOCAL, MINISTRAL, SLIDING, TEXT, TWICE, Family, trained
from tests.vision.checkpoints import MEDIA, config_of, save_model

# Three axes over the 16 rotated pairs of a head.
MROPE = PLAIN | {"mrope_section": [4, 6, 6]}
INTERLEAVED = PLAIN | {"mrope_section": [6, 5, 5], "mrope_interleaved": True}
HALF = PLAIN | {"mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
SHAPED = TEXT | {"vocab_size": VOCAB + len(MEDIA)}
QWEN_TOKENS = {
    "image_token_id": MEDIA["<|image_pad|>"], "video_token_id": MEDIA["<|video_pad|>"],
    "vision_start_token_id": MEDIA["<|vision_start|>"], "vision_end_token_id": MEDIA["<|vision_end|>"],
}  # fmt: skip
QWEN2_ENCODER = {"depth": 1, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
QWEN2_5_ENCODER = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 128, "patch_size": 14,
    "window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2,
}  # fmt: skip
QWEN3_ENCODER = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 128, "patch_size": 16,
    "num_position_embeddings": 64, "deepstack_visual_indexes": [0],
}  # fmt: skip
GLM_ENCODER = {
    "depth": 1, "hidden_size": 64, "out_hidden_size": 128, "intermediate_size": 160, "num_heads": 2, "image_size": 56,
}  # fmt: skip
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 112, "patch_size": 14,
}  # fmt: skip
CLIP = SIGLIP | {"model_type": "clip_vision_model", "image_size": 70, "num_hidden_layers": 2, "projection_dim": 64}
PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 32,
    "num_attention_heads": 2, "image_size": 280, "patch_size": 14,
}  # fmt: skip
INTERN = {
    "model_type": "internvl_vision", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": [112, 112], "patch_size": [14, 14],
}  # fmt: skip
LLAMA4_ENCODER = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 256, "image_size": 56,
    "vision_output_dim": 128, "projector_input_dim": 128, "projector_output_dim": 128,
}  # fmt: skip
LLAMA4_TEXT = LLAMA4 | SHAPED | {"rope_parameters": PLAIN, "initializer_range": 0.0}
LLAMA4_ENGINE = LLAMA4_TEXT.pop("engine")


class VisionFamily(Family):
    """A multimodal model family."""

    def save(self, folder: Path) -> Path:
        return save_model(getattr(transformers, self.model), self.config(), folder)


def family(model: str, config: str, text: dict[str, Any], vision: dict[str, Any], **fields: Any) -> VisionFamily:
    """A multimodal model; ``fields`` are of its config, beside ``sets`` and ``engine``."""
    rope = text["rope_parameters"]
    sets = fields.pop("sets", None) or yarn_sets(rope.get("full_attention", rope))
    engine = fields.pop("engine", {})
    config_type = fields.pop("text_type", None)
    text = text | ({"model_type": config_type} if config_type else {})
    return VisionFamily(model, config_of(config, text, vision, **fields), sets, {"ladder": "auto"}, engine)


FAMILIES = {
    "qwen2-vl": family(
        "Qwen2VLForConditionalGeneration", "Qwen2VLConfig", SHAPED | {"rope_parameters": MROPE}, QWEN2_ENCODER,
        **QWEN_TOKENS,
    ),
    "qwen2.5-vl": family(
        "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig", SHAPED | {"rope_parameters": MROPE},
        QWEN2_5_ENCODER, **QWEN_TOKENS,
    ),
    # Scaling added as the model's card says, in the config.
    "qwen2.5-vl-yarn": family(
        "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig",
        SHAPED | {
            "rope_parameters": MROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": WINDOW},
            "max_position_embeddings": 4 * WINDOW,
        },
        QWEN2_5_ENCODER, sets=yarn_sets(MROPE), **QWEN_TOKENS,
    ),
    "qwen3-vl": family(
        "Qwen3VLForConditionalGeneration", "Qwen3VLConfig", SHAPED | {"rope_parameters": INTERLEAVED}, QWEN3_ENCODER,
        **QWEN_TOKENS,
    ),
    "glm-4.1v": family(
        "Glm4vForConditionalGeneration", "Glm4vConfig", SHAPED | {"rope_parameters": HALF}, GLM_ENCODER,
        image_token_id=MEDIA["<|image|>"], video_token_id=MEDIA["<|video|>"],
        image_start_token_id=MEDIA["<|begin_of_image|>"], image_end_token_id=MEDIA["<|end_of_image|>"],
        video_start_token_id=MEDIA["<|begin_of_video|>"], video_end_token_id=MEDIA["<|end_of_video|>"],
    ),
    # Layers of full attention with a base of their own.
    "gemma3": family(
        "Gemma3ForConditionalGeneration", "Gemma3Config",
        SHAPED | SLIDING | {
            "rope_parameters": {"full_attention": PLAIN, "sliding_attention": LOCAL}, "query_pre_attn_scalar": HEAD,
        },
        SIGLIP, mm_tokens_per_image=16, image_token_index=MEDIA["<|image_pad|>"],
        boi_token_index=MEDIA["<|vision_start|>"], eoi_token_index=MEDIA["<|vision_end|>"],
    ),
    # See ``tests/exactness/families.py`` on both fields.
    "llama4": family(
        "Llama4ForConditionalGeneration", "Llama4Config", LLAMA4_TEXT, LLAMA4_ENCODER,
        engine=LLAMA4_ENGINE,
        image_token_index=MEDIA["<|image_pad|>"], boi_token_index=MEDIA["<|vision_start|>"],
        eoi_token_index=MEDIA["<|vision_end|>"],
    ),
    "mistral3": family(
        "Mistral3ForConditionalGeneration", "Mistral3Config", SHAPED | {"rope_parameters": PLAIN}, PIXTRAL,
        text_type="mistral", image_token_index=MEDIA["<|image_pad|>"], tie_word_embeddings=False,
    ),
    # Scaling that the model was trained with, and attention scaled by positions.
    "ministral3": family(
        "Mistral3ForConditionalGeneration", "Mistral3Config",
        SHAPED | {"rope_parameters": MINISTRAL, "max_position_embeddings": TWICE["max_position_embeddings"]},
        PIXTRAL, sets=trained(MINISTRAL), text_type="ministral3", image_token_index=MEDIA["<|image_pad|>"],
        tie_word_embeddings=False,
    ),
    "llava": family(
        "LlavaForConditionalGeneration", "LlavaConfig", SHAPED | {"rope_parameters": PLAIN}, CLIP, text_type="llama",
        image_token_index=MEDIA["<|image_pad|>"], image_seq_length=25,
    ),
    "internvl": family(
        "InternVLForConditionalGeneration", "InternVLConfig", SHAPED | {"rope_parameters": PLAIN}, INTERN,
        text_type="qwen2", image_token_id=MEDIA["<|image_pad|>"], image_seq_length=16, tie_word_embeddings=False,
    ),
}  # fmt: skip
