"""Tiny random checkpoints of any architecture that transformers has a class for."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

WINDOW = 64
# Prompts keep below the ids that configs reserve, which follow.
TEXT_VOCAB, RESERVED = 400, 440
HEAD, HEADS = 32, 4

SIZES = yaml.safe_load(Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8"))


def tiny(kind: type, changes: Mapping[str, Any] | None = None, *, text: bool = True) -> Any:
    """A config of ``kind`` with tiny sizes in the fields that it has, and in those of its nested configs.

    Args:
        kind: A subclass of transformers' ``PreTrainedConfig``.
        changes: What differs from the sizes of sizes.yaml; a mapping under a nested config's name goes into that.
        text: Whether it is of a text decoder, or of an encoder.
    """
    changes = dict(changes or {})
    fields = kind().to_dict()
    nested: Mapping[str, type] = getattr(kind, "sub_configs", {})
    sizes = SIZES["decoder" if text else "encoder"]
    values = {name: size for size, names in sizes.items() for name in names if fields.get(name) is not None}
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


def save(cls: type, config: Any, folder: Path) -> None:
    """Save a model with seeded random weights, in float32, large enough for attention to tell positions apart."""
    torch.manual_seed(5)
    model: Any = cls(config).float().eval()
    for name, weight in model.named_parameters():
        if "norm" not in name and weight.dim() in (2, 3) and weight.numel() > weight.shape[-1]:
            torch.nn.init.normal_(weight, std=1.6 / math.sqrt(weight.shape[-1]))
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
