"""Processors of multimodal models, which vLLM and transformers both read: what a picture becomes in each family."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers

from tests.vision.checkpoints import media_tokenizer

# Sides of the pictures that encoders take, in pixels.
LLAVA_SIDE, SIDE = 70, 112
NEWLINES = tuple("\n" * count for count in range(1, 5))


@dataclass(frozen=True)
class Processor:
    """What a family makes of media."""

    make: Callable[[], Any]  # Makes its processor.
    side: int  # Pixels of the side of a picture's unit, which is a token, or a tile of several.
    # How many tokens a picture of ``columns`` by ``rows`` units takes, with those around it.
    tokens: Callable[[int, int], int]
    image: str = "<|image_pad|>"  # What stands for a picture in the text of a prompt.
    video: str = ""  # What stands for a video.
    metadata: bool = False  # Whether vLLM takes a video's metadata.


def qwen(name: str, patch_size: int) -> Processor:
    """A Qwen processor, by the beginning of its class's name: at most 80 tokens of four patches for a picture."""
    return Processor(
        lambda: _grid(name, "Qwen2VL", "Qwen3VL" if name == "Qwen3VL" else "Qwen2VL", patch_size), 2 * patch_size,
        _bordered, "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>",
        metadata=name != "Qwen2VL",
    )  # fmt: skip


def _grid(name: str, images: str, videos: str, patch_size: int) -> Any:
    area = (2 * patch_size) ** 2
    shape = {"patch_size": patch_size, "merge_size": 2, "temporal_patch_size": 2}
    video_class = getattr(transformers, f"{videos}VideoProcessor")
    # As in published checkpoints; vLLM normalizes images and videos alike.
    colours = {"image_mean": video_class.image_mean, "image_std": video_class.image_std}
    size = {"shortest_edge": area, "longest_edge": 80 * area}
    image = getattr(transformers, f"{images}ImageProcessor")(size=size, **colours, **shape)
    # A video's size counts all its frames; for Qwen2-VL and Qwen2.5-VL, one of them.
    video = video_class(size=size, do_sample_frames=False, **shape)
    return getattr(transformers, f"{name}Processor")(image, media_tokenizer(), video)


def _bordered(columns: int, rows: int) -> int:
    return columns * rows + 2


def _llava() -> Any:
    size = {"shortest_edge": LLAVA_SIDE}
    image = transformers.CLIPImageProcessor(size=size, crop_size={"height": LLAVA_SIDE, "width": LLAVA_SIDE})
    return transformers.LlavaProcessor(
        image, media_tokenizer(), patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, image_token="<|image_pad|>",
    )  # fmt: skip


def _gemma3() -> Any:
    names = {"image_token": "<|image_pad|>", "boi_token": "<|vision_start|>", "eoi_token": "<|vision_end|>"}
    image = transformers.Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE})
    # vLLM joins the newlines around pictures to those of the text.
    return transformers.Gemma3Processor(image, media_tokenizer(names, NEWLINES), image_seq_length=16)


def _mistral3() -> Any:
    image = transformers.PixtralImageProcessor(size={"longest_edge": 280}, patch_size={"height": 14, "width": 14})
    return transformers.PixtralProcessor(
        image, media_tokenizer(), patch_size=14, spatial_merge_size=2, image_token="<|image_pad|>",
        image_break_token="<|vision_start|>", image_end_token="<|vision_end|>",
    )  # fmt: skip


def _internvl() -> Any:
    names = {
        "context_image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "start_image_token": "<|vision_start|>",
        "end_image_token": "<|vision_end|>",
    }  # fmt: skip
    size = {"height": SIDE, "width": SIDE}
    image = transformers.GotOcr2ImageProcessor(size=size, crop_to_patches=True, max_patches=4)
    video = transformers.InternVLVideoProcessor(size=size)
    return transformers.InternVLProcessor(image, media_tokenizer(names), video, image_seq_length=16)


def _internvl_tokens(columns: int, rows: int) -> int:
    tiles = columns * rows
    return 2 + 16 * (tiles + (tiles > 1))


PROCESSORS = {
    "qwen2-vl": qwen("Qwen2VL", 14),
    "qwen2.5-vl": qwen("Qwen2_5_VL", 14),
    "qwen3-vl": qwen("Qwen3VL", 16),
    "glm-4.1v": Processor(
        lambda: _grid("Glm4v", "Glm4v", "Glm4v", 14), 28, _bordered,
        "<|begin_of_image|><|image|><|end_of_image|>", "<|begin_of_video|><|video|><|end_of_video|>", metadata=True,
    ),
    "llava": Processor(_llava, LLAVA_SIDE, lambda columns, rows: 25),
    # Newlines, and where the picture begins and ends.
    "gemma3": Processor(_gemma3, SIDE, lambda columns, rows: 16 + 4, "<|vision_start|>"),
    # Two tokens by two, and one behind each row.
    "mistral3": Processor(_mistral3, 56, lambda columns, rows: (2 * columns + 1) * 2 * rows),
    "internvl": Processor(_internvl, SIDE, _internvl_tokens),
}  # fmt: skip
