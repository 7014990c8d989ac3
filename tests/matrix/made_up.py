"""Models of which transformers has no class: a config of fields alone, and random weights that vLLM's own model asks for."""

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from vllm.model_executor.model_loader import DummyModelLoader, register_model_loader
from vllm.transformers_utils.config import _CONFIG_REGISTRY

from tests.matrix.tiny import HEADS, HIDDEN, KV_HEADS, VOCAB, WINDOW

LOAD_FORMAT = "made-up"
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# What the config of a decoder of Llama's kind has.
FIELDS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": WINDOW,
    "rope_parameters": ROPE,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


# What the configs of encoders have, of which nothing is built for text alone.
ENCODER: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2, "depth": 1,
    "num_heads": 2, "image_size": 56, "patch_size": 14, "num_channels": 3, "in_channels": 3, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "merge_size": 2, "hidden_stride": 2, "layer_norm_eps": 1e-6, "rms_norm_eps": 1e-6,
    "hidden_act": "gelu", "out_hidden_size": HIDDEN, "embed_dim": 64, "use_bias": False, "attention_dropout": 0.0,
    "mlp_ratio": 2.0, "post_norm": True, "num_positions": 16,
}  # fmt: skip
ENCODERS = ("vision_config", "vit_config", "audio_config", "visual_tokenizer_config")
# Where the config of a decoder is in a multimodal model's.
TEXT = ("text_config", "llm_config", "language_config")


class Block(dict[str, Any]):
    """Fields by attribute, as a layer's own config in the code of some checkpoints."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class MadeUpConfig(PreTrainedConfig):
    """Has whatever fields the file has."""

    model_type = "made-up"

    def __post_init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            if name.endswith("_config") and isinstance(value, dict):
                known = value.get("model_type") in CONFIG_MAPPING
                if name in ENCODERS and not known:
                    value = ENCODER | value
                kind = CONFIG_MAPPING[value["model_type"]] if known else MadeUpConfig
                fields[name] = kind(**value)
            elif name == "block_configs":
                fields[name] = json.loads(json.dumps(value), object_hook=Block)
        for name in TEXT:
            if name in fields:
                # As in the code of checkpoints that name it so.
                fields["text_config"] = fields[name]
        super().__post_init__(**fields)


def save(architecture: str, fields: Mapping[str, Any], folder: Path) -> None:
    """Write the config of a model of ``architecture``; a field set to None is left out of :data:`FIELDS`.

    vLLM recognizes latent attention by ``model_type``. A ``model_type`` in ``fields`` is registered with transformers,
    where vLLM has no class for it.
    """
    texts = [name for name in TEXT if name in fields]
    config = dict(fields) | {name: _filled(fields[name]) for name in texts} if texts else _filled(fields)
    model_type = config.pop("model_type", MadeUpConfig.model_type)
    if model_type not in CONFIG_MAPPING and model_type not in _CONFIG_REGISTRY:
        AutoConfig.register(model_type, type("MadeUpConfig", (MadeUpConfig,), {"model_type": model_type}))
    text = json.dumps({"architectures": [architecture], "model_type": model_type, **config})
    (folder / "config.json").write_text(text, encoding="utf-8")


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (FIELDS | dict(fields)).items() if name not in FIELDS or value is not None}


@register_model_loader(LOAD_FORMAT)
class MadeUpWeights(DummyModelLoader):
    """Gives every parameter the same random values in every engine, wide enough for attention to tell positions apart."""

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        for name, weight in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            if weight.dim() > 1:
                values = torch.randn(weight.shape, generator=generator) * 1.6 / math.sqrt(weight.shape[-1])
            elif name.endswith("weight"):
                # Of a norm, whatever it is called.
                values = torch.ones(weight.shape)
            else:
                values = torch.zeros(weight.shape)
            weight.data.copy_(values)


AutoConfig.register(MadeUpConfig.model_type, MadeUpConfig)
