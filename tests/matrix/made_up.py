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


class MadeUpConfig(PreTrainedConfig):
    """Has whatever fields the file has."""

    model_type = "made-up"


def save(architecture: str, fields: Mapping[str, Any], folder: Path) -> None:
    """Write the config of a model of ``architecture``; a field set to None is left out of :data:`FIELDS`.

    vLLM recognizes latent attention by ``model_type``. A ``model_type`` in ``fields`` is registered with transformers.
    """
    config = {name: value for name, value in (FIELDS | dict(fields)).items() if value is not None}
    model_type = config.pop("model_type", MadeUpConfig.model_type)
    if model_type not in CONFIG_MAPPING:
        AutoConfig.register(model_type, type("MadeUpConfig", (MadeUpConfig,), {"model_type": model_type}))
    text = json.dumps({"architectures": [architecture], "model_type": model_type, **config})
    (folder / "config.json").write_text(text, encoding="utf-8")


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
