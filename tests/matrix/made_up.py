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

from tests.matrix.tiny import SIZES

LOAD_FORMAT = "made-up"
ENCODERS = ("vision_config", "vit_config", "audio_config", "visual_tokenizer_config")
# Where the config of a decoder is in a multimodal model's.
TEXT = ("text_config", "llm_config", "language_config")
# How the names of factors end: of norms, whatever they are called, and those that Dory has in their place.
NORMS = ("weight", ".sqk", ".s_gate", ".attn_alpha", ".mlp_alpha", ".suv_gate", ".suv_up", ".logit_scale")


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
            # transformers applies a layer's own fields itself.
            if name.endswith("_config") and name != "per_layer_config" and isinstance(value, dict):
                known = value.get("model_type") in CONFIG_MAPPING
                if name in ENCODERS and not known:
                    value = SIZES["made_up_encoder"] | value
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
    """Write the config of a model of ``architecture``; a field set to None is left out of those of sizes.yaml.

    vLLM recognizes latent attention by ``model_type``. A ``model_type`` in ``fields`` is registered with transformers,
    if vLLM has no class for it.
    """
    texts = [name for name in TEXT if name in fields]
    config = dict(fields) | {name: _filled(fields[name]) for name in texts} if texts else _filled(fields)
    model_type = config.pop("model_type", MadeUpConfig.model_type)
    if model_type not in CONFIG_MAPPING and model_type not in _CONFIG_REGISTRY:
        AutoConfig.register(model_type, type("MadeUpConfig", (MadeUpConfig,), {"model_type": model_type}))
    text = json.dumps({"architectures": [architecture], "model_type": model_type, **config})
    (folder / "config.json").write_text(text, encoding="utf-8")


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = SIZES["made_up_decoder"]
    return {name: value for name, value in (given | dict(fields)).items() if name not in given or value is not None}


@register_model_loader(LOAD_FORMAT)
class MadeUpWeights(DummyModelLoader):
    """Gives every parameter the same random values in every engine, wide enough for attention to tell positions apart."""

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        for name, weight in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            if weight.dim() > 1:
                values = torch.randn(weight.shape, generator=generator) * 1.6 / math.sqrt(weight.shape[-1])
            elif name.endswith(NORMS):
                values = torch.ones(weight.shape)
            else:
                values = torch.zeros(weight.shape)
            weight.data.copy_(values)


AutoConfig.register(MadeUpConfig.model_type, MadeUpConfig)
