"""Tiny random checkpoints of multimodal models, with the processor that vLLM and transformers both read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken

from tests.exactness.checkpoints import VOCAB, spread
from tests.server.checkpoint import byte_tokenizer

# Tokens that stand for media, behind those that prompts are made of.
NAMES = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
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
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def save_processor(folder: Path, name: str, patch_size: int) -> None:
    """Write a Qwen processor: one token per byte of text, and at most 80 tokens for a picture.

    Args:
        folder: Of the checkpoint.
        name: How the processor's class in transformers begins: Qwen2VL, Qwen2_5_VL or Qwen3VL.
        patch_size: Pixels of a patch's side; four patches make a token.
    """
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<unused{number}>" for number in range(VOCAB - len(tokenizer))])
    tokenizer.add_tokens([AddedToken(media, special=True) for media in NAMES], special_tokens=True)
    assert tokenizer.convert_tokens_to_ids(list(NAMES)) == list(MEDIA.values())
    area = (2 * patch_size) ** 2
    shape = {"patch_size": patch_size, "merge_size": 2, "temporal_patch_size": 2}
    videos = transformers.Qwen3VLVideoProcessor if name == "Qwen3VL" else transformers.Qwen2VLVideoProcessor
    # As in published checkpoints; vLLM normalizes images and videos alike.
    colours = {"image_mean": videos.image_mean, "image_std": videos.image_std}
    size = {"shortest_edge": area, "longest_edge": 80 * area}
    image = transformers.Qwen2VLImageProcessor(size=size, **colours, **shape)
    # A video's size counts all its frames for Qwen3-VL, one frame for the others.
    video = videos(size=size, do_sample_frames=False, **shape)
    getattr(transformers, f"{name}Processor")(image, tokenizer, video).save_pretrained(folder)
