"""Prompts with images and videos, as vLLM and as Hugging Face get them, and Hugging Face's answer to each."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import AutoProcessor
from transformers.video_utils import VideoMetadata
from vllm.platforms import current_platform

from tests.exactness.reference import Reference
from tests.exactness.static_reference import StaticReference
from tests.vision.processors import Processor

FRAMES = 4
# What the processors say of each token: whether it is of an image or a video.
TYPES = {"mm_token_type_ids", "token_type_ids"}


@dataclass(frozen=True)
class Prompt:
    """A prompt as it is written."""

    # In order: a number of characters of text, or the size of an image, ``(columns, rows)`` in units.
    parts: tuple[int | tuple[int, int], ...]
    seed: int = 0  # Of the text and the pixels.
    video: float | None = None  # Seconds between a video's frames, which comes before the text; None for no video.

    def text(self, image: str, video: str) -> str:
        """As it is written, with what stands for each image and video."""
        random = np.random.default_rng(self.seed)
        parts = [
            "".join(map(chr, random.integers(97, 123, part))) if isinstance(part, int) else image for part in self.parts
        ]
        return "".join(([video] if self.video else []) + parts)

    def images(self, side: int) -> list[Image.Image]:
        """Pictures of noise; ``side`` is that of a unit, in pixels."""
        random = np.random.default_rng(self.seed)
        sizes = [part for part in self.parts if not isinstance(part, int)]
        return [
            Image.fromarray(random.integers(0, 256, (rows * side, columns * side, 3), np.uint8))
            for columns, rows in sizes
        ]

    def frames(self, side: int) -> np.ndarray[Any, Any]:
        """A video of ``FRAMES`` frames of two by three units."""
        return np.random.default_rng(self.seed).integers(0, 256, (FRAMES, 2 * side, 3 * side, 3), np.uint8)

    def metadata(self) -> dict[str, Any]:
        assert self.video is not None
        seconds = FRAMES * self.video
        indices = list(range(FRAMES))
        return {"fps": 1 / self.video, "duration": seconds, "total_num_frames": FRAMES, "frames_indices": indices}


@dataclass
class MediaReference(Reference):
    """A model that gets a prompt's media beside its tokens."""

    media: dict[str, Any] = field(default_factory=dict)  # What the processor made of the prompt, without its tokens.
    # Whether text goes on after the last position of a video on any axis, as in Qwen's own code and vLLM;
    # transformers 5.19 goes on after its height and width.
    after_time: bool = False

    def log_probs(self, tokens: list[int]) -> torch.Tensor:
        key = tuple(tokens)
        if key not in self._cache:
            inputs = self.media | {"input_ids": torch.tensor([tokens])}
            for name in TYPES & self.media.keys():
                # Placeholders are in the prompt alone.
                kinds = self.media[name]
                inputs[name] = F.pad(kinds, (0, len(tokens) - kinds.shape[1]))
            if self.after_time:
                inputs |= {"position_ids": self.positions(tokens, inputs["mm_token_type_ids"])}
            with torch.no_grad():
                self._cache[key] = self.model(use_cache=False, **inputs).logits[0].log_softmax(-1)
        return self._cache[key]

    def positions(self, tokens: list[int], types: torch.Tensor) -> torch.Tensor:
        """Positions ``[axes, 1, tokens]`` of a prompt with one video, with text after its last one on any axis."""
        grids = {name: self.media[name] for name in ("video_grid_thw", "second_per_grid_ts")}
        model: Any = self.model.model
        positions: torch.Tensor = model.get_rope_index(torch.tensor([tokens]), mm_token_type_ids=types, **grids)[0]
        end = int(types[0].nonzero().max()) + 1
        positions[:, :, end:] = positions[:, :, :end].max() + 1 + torch.arange(len(tokens) - end)
        return positions


@dataclass(frozen=True)
class Media:
    """The prompts of one checkpoint."""

    folder: Path  # Of the checkpoint.
    reference: StaticReference  # Its text model's, one for each set.
    processor: Processor  # What its family makes of media.
    after_time: bool = False  # See :class:`MediaReference`.
    _known: dict[Prompt, tuple[list[int], StaticReference]] = field(default_factory=dict)

    def text(self, prompt: Prompt) -> str:
        return prompt.text(self.processor.image, self.processor.video)

    def request(self, prompt: Prompt) -> dict[str, Any]:
        """What ``LLM.generate`` takes."""
        media: dict[str, Any] = {}
        if images := prompt.images(self.processor.side):
            media["image"] = images
        if prompt.video:
            frames = prompt.frames(self.processor.side)
            media["video"] = (
                [(frames, prompt.metadata() | {"do_sample_frames": False})] if self.processor.metadata else [frames]
            )
        return {"prompt": self.text(prompt)} | ({"multi_modal_data": media} if media else {})

    def expected(self, prompt: Prompt) -> tuple[list[int], StaticReference]:
        """The prompt's tokens and the reference that has its media."""
        if prompt not in self._known:
            self._known[prompt] = self._read(prompt)
        return self._known[prompt]

    def _read(self, prompt: Prompt) -> tuple[list[int], StaticReference]:
        processor = AutoProcessor.from_pretrained(self.folder)
        images = prompt.images(self.processor.side)
        media: dict[str, Any] = {"images": images} if images else {}
        if prompt.video:
            media |= {"videos": [prompt.frames(self.processor.side)]}
            if self.processor.metadata:
                media |= {"video_metadata": [VideoMetadata(**prompt.metadata())]}
        inputs = dict(processor(text=[self.text(prompt)], return_tensors="pt", **media))
        (tokens,) = inputs.pop("input_ids").tolist()
        inputs.pop("attention_mask")
        if current_platform.is_cpu():
            # Gemma 3 attends both ways within an image, but vLLM's attention on CPUs attends backwards alone.
            inputs.pop("token_type_ids", None)
        if "second_per_grid_ts" in inputs:
            inputs["second_per_grid_ts"] = torch.as_tensor(inputs["second_per_grid_ts"])
        models = {
            end: MediaReference(each.model, media=inputs, after_time=self.after_time)
            for end, each in self.reference.by_end.items()
        }
        return tokens, StaticReference(models)
