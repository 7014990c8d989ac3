"""Tiny random checkpoints of any architecture that transformers has a class for."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

WINDOW = 64
VOCAB = 512
# Prompts keep below the ids that configs reserve, which follow.
TEXT_VOCAB, RESERVED = 400, 440
HEAD, HIDDEN, HEADS, KV_HEADS, EXPERTS = 32, 128, 4, 2, 4

# What a config gets for the fields that it has, whichever architecture it is of.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "padded_vocab_size", "text_vocab_size"), VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "n_inner", "d_ff", "feedforward_size"), 160),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), KV_HEADS),
    **dict.fromkeys(("head_dim", "kv_channels", "attention_head_dim"), HEAD),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length", "max_seq_len", "n_ctx",
         "model_max_length"), WINDOW,
    ),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"), EXPERTS
    ),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size", "moe_latent_size",
         "moe_shared_expert_intermediate_size", "shared_intermediate_size"), 64,
    ),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    "sliding_window": 48,
    "q_lora_rank": 64,
    # The sizes that vLLM's CPU kernel for latent attention is compiled for.
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    # State-space and linear-attention layers.
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "mamba_d_head": 64,
    "mamba_head_dim": 64,
    "mamba_d_ssm": 256,
    "mamba_d_state": 16,
    "mamba_chunk_size": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "query_pre_attn_scalar": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB,
}  # fmt: skip
# The same for encoders of images and sounds, which text-only requests never run.
ENCODER: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "embed_dim", "d_model", "out_hidden_size", "encoder_hidden_size", "vision_output_dim",
         "output_dim", "projection_dim", "hidden_dim"), HIDDEN,
    ),
    **dict.fromkeys(
        ("intermediate_size", "mlp_dim", "encoder_ffn_dim", "decoder_ffn_dim", "projector_intermediate_size"), 128
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "depth", "num_layers", "encoder_layers", "decoder_layers", "num_global_layers"), 1
    ),
    **dict.fromkeys(
        ("num_attention_heads", "num_heads", "num_key_value_heads", "encoder_attention_heads",
         "decoder_attention_heads"), HEADS,
    ),
    "head_dim": HEAD,
    "vocab_size": VOCAB,
    "max_position_embeddings": WINDOW,
    "conv_dim": 32,
    "downsample_hidden_size": 32,
}  # fmt: skip


def tiny(kind: type, changes: Mapping[str, Any] | None = None, *, text: bool = True) -> Any:
    """A config of ``kind`` with tiny sizes in the fields that it has, and in those of its nested configs.

    Args:
        kind: A subclass of transformers' ``PreTrainedConfig``.
        changes: What differs from :data:`SIZES`; a mapping under a nested config's name goes into that.
        text: Whether it is of a text decoder, or of an encoder.
    """
    changes = dict(changes or {})
    fields = kind().to_dict()
    nested: Mapping[str, type] = getattr(kind, "sub_configs", {})
    sizes = SIZES if text else ENCODER
    values = {name: size for name, size in sizes.items() if fields.get(name) is not None}
    for name, nested_kind in nested.items():
        if fields.get(name) is None and name not in changes:
            continue
        if nested_kind is transformers.AutoConfig:
            model_type = (changes.get(name) or fields[name]).get("model_type", fields[name].get("model_type"))
            nested_kind = transformers.CONFIG_MAPPING[model_type]
        is_text = text and not any(part in name for part in ("vision", "audio", "encoder", "speech", "qformer"))
        values[name] = tiny(nested_kind, changes.pop(name, None), text=is_text)
        if kind.__name__ == "Qwen3OmniMoeTalkerConfig":
            # It takes mappings only.
            values[name] = values[name].to_dict()
    if rope := _rope(fields, values | changes):
        values["rope_parameters"] = rope
    if "kv_lora_rank" in values:
        values["num_key_value_heads"] = HEADS
        # Latent attention has other names for it; transformers rotates as many values as this one says.
        values.pop("head_dim", None)
    if text:
        values |= {name: RESERVED + place for place, name in enumerate(_reserved(fields))}
        kinds = list(dict.fromkeys(fields.get("layer_types") or ()))
        if kinds:
            values["num_hidden_layers"] = 2 * len(kinds) if len(kinds) > 1 else 2
            values["layer_types"] = kinds * 2
    return kind(**(values | changes))


def _rope(fields: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Plain rotary parameters for scaled ones, M-RoPE's sections shrunk to the head; None to keep the config's."""
    rope = fields.get("rope_parameters") or {}
    if not rope or all(isinstance(value, Mapping) for value in rope.values()):
        return None
    kept = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
    rope = {"rope_type": "default"} | {name: rope[name] for name in kept if rope.get(name) is not None}
    if sections := rope.get("mrope_section"):
        pairs = int(values.get("head_dim", HEAD) * rope.get("partial_rotary_factor", 1.0)) // 2
        shrunk = [section * pairs // sum(sections) for section in sections]
        rope["mrope_section"] = [pairs - sum(shrunk[1:]), *shrunk[1:]]
    return rope


def _reserved(fields: Mapping[str, Any]) -> list[str]:
    """Names of the fields that hold the id of a token which stands for something else than text."""
    text = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    endings = ("_token_id", "_token_index")
    return [
        name for name, value in fields.items() if name.endswith(endings) and name not in text and isinstance(value, int)
    ]


def save(cls: type, config: Any, folder: Path, *, gain: float = 1.6, seed: int = 5) -> Path:
    """Save a model with seeded random weights, in float32.

    Args:
        cls: The model's class in transformers.
        config: Of the model.
        folder: Where to.
        gain: Of each matrix; large enough for attention to tell positions apart.
        seed: Of the weights.
    """
    torch.manual_seed(seed)
    model: Any = cls(config).float().eval()
    for name, weight in model.named_parameters():
        if "norm" not in name and weight.dim() in (2, 3) and weight.numel() > weight.shape[-1]:
            torch.nn.init.normal_(weight, std=gain / math.sqrt(weight.shape[-1]))
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder
