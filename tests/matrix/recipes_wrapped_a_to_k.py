"""Recipes of models that transformers has no class for, most of them multimodal: names from A to K."""

from typing import Any

from tests.matrix.recipe import LATENT, LATENT_FIELDS, Recipe

_MOE: dict[str, Any] = {
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "norm_topk_prob": True, "first_k_dense_replace": 1, "moe_layer_freq": 1, "routed_scaling_factor": 1.0, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
_DEEPSEEK_V2 = _MOE | LATENT_FIELDS | {"q_lora_rank": None, "topk_method": "greedy", "scoring_func": "softmax"}
_INTERN_VIT = {
    "norm_type": "layer_norm", "qkv_bias": True, "qk_normalization": False, "initializer_factor": 1.0, "dropout": 0.0,
}  # fmt: skip
_INTERNVL = {
    "force_image_size": 56, "downsample_ratio": 0.5, "ps_version": "v2", "select_layer": -1, "min_dynamic_patch": 1,
    "max_dynamic_patch": 2, "dynamic_image_size": True, "use_thumbnail": True, "template": "internvl2_5",
}  # fmt: skip

RECIPES: dict[str, Recipe] = {
    "DeepseekVLV2ForCausalLM": Recipe(
        fields={
            "model_type": "deepseek_vl_v2",
            "tile_tag": "2D",
            "language_config": _DEEPSEEK_V2 | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"},
        },
        engine=LATENT,
        tokens=("<image>",),
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
