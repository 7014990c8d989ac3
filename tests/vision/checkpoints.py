"""Tiny random checkpoints of multimodal models, with the tokenizer that vLLM and transformers both read."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.exactness.checkpoints import VOCAB, spread
from tests.server.checkpoint import byte_tokenizer

# Tokens that stand for media, behind those that prompts are made of: as Qwen and GLM name them.
NAMES = (
    "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>",
    "<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
)  # fmt: skip
MEDIA = {name: VOCAB + number for number, name in enumerate(NAMES)}


def config_of(name: str, text: dict[str, Any], vision: dict[str, Any], **fields: Any) -> Callable[[], Any]:
    """Makes the config of that name in transformers."""
    return lambda: getattr(transformers, name)(text_config=dict(text), vision_config=dict(vision), **fields)


def save_model(cls: type[transformers.PreTrainedModel], config: Any, folder: Path) -> Path:
    """Write a model that never says a token of :data:`MEDIA`."""
    torch.manual_seed(0)
    model = cls(config).float().eval()
    spread(model)
    model.get_output_embeddings().weight.data[VOCAB:] = 0
    model.save_pretrained(folder)
    rename_encoder(folder / "model.safetensors", config.vision_config.model_type)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def rename_encoder(path: Path, kind: str) -> None:
    """Name CLIP's and SigLIP's weights as published checkpoints do; transformers 5 reads those names, but writes others."""
    if kind not in ("clip_vision_model", "siglip_vision_model"):
        return
    weights = {
        re.sub(r"^vision_tower\.", "vision_tower.vision_model.", name): weight
        for name, weight in load_file(path).items()
    }
    save_file(weights, path, {"format": "pt"})


def media_tokenizer(names: Mapping[str, str] | None = None, texts: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """One token per byte of text, those of :data:`MEDIA`, some as attributes like ``image_token``, and one for each text."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(list(texts))
    tokenizer.add_tokens([f"<unused{number}>" for number in range(VOCAB - len(tokenizer))])
    tokenizer.add_tokens([AddedToken(media, special=True) for media in NAMES], special_tokens=True)
    assert tokenizer.convert_tokens_to_ids(list(NAMES)) == list(MEDIA.values())
    tokenizer._set_model_specific_special_tokens(dict(names or {}))
    return tokenizer
