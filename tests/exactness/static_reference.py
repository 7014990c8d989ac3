"""Hugging Face with static scaling: one model for each factor set, its frequencies formed by transformers alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ropeswitch.factors.rope_layers import FULL
from tests.exactness.reference import Oracle, Reference, load_model

# Rotary parameters of a config, or None for those that the checkpoint's own config has.
Rope = Mapping[str, Any] | None


@dataclass(frozen=True)
class StaticReference(Oracle):
    """Models by the longest sequence of their set, rising; the first that is long enough counts."""

    by_end: Mapping[int, Reference]

    @classmethod
    def load(cls, folder: Path, ropes: Mapping[int, Rope]) -> "StaticReference":
        """Load the checkpoint once for each set, with the rotary parameters of each, by its longest sequence, rising."""
        return cls({end: Reference(_model(folder, rope, end)) for end, rope in ropes.items()})

    def log_probs(self, tokens: list[int]) -> torch.Tensor:
        return self.by_end[self.set_at(len(tokens))].log_probs(tokens)

    def set_at(self, length: int) -> int:
        return next(end for end in self.by_end if length <= end)

    def closest_sets(self, tokens: list[int]) -> float:
        """The largest difference in the next token's log-probabilities between the two sets that differ least."""
        rows = [reference.log_probs(tokens)[-1] for reference in self.by_end.values()]
        pairs = combinations(rows, 2)
        return min((float((row - other).abs().max()) for row, other in pairs), default=math.inf)


def _model(folder: Path, rope: Rope, end: int) -> torch.nn.Module:
    config = AutoConfig.from_pretrained(folder)
    text = config.get_text_config()
    if rope is not None:
        _put(text, dict(rope))
    dynamic = text.rope_parameters.get("rope_type") == "dynamic"
    frequencies = ROPE_INIT_FUNCTIONS["dynamic"](text, "cpu", seq_len=end)[0] if dynamic else None
    if dynamic:
        # Its own forward would form frequencies for every length, and keep the largest from call to call.
        _put(text, {"rope_type": "default", "rope_theta": text.rope_parameters["rope_theta"]})
    model = load_model(folder, config=config)
    if frequencies is not None:
        model.model.rotary_emb.inv_freq.copy_(frequencies)
    return model


def _put(text: PretrainedConfig, rope: dict[str, Any]) -> None:
    """Give a text config rope parameters; where each type of layer has its own, those of full attention."""
    if FULL in text.rope_parameters:
        text.rope_parameters = text.rope_parameters | {FULL: rope}
        return
    text.rope_parameters = rope
    # Where a config has the window at the top too, transformers counts that one.
    if "original_max_position_embeddings" in rope and hasattr(text, "original_max_position_embeddings"):
        text.original_max_position_embeddings = rope["original_max_position_embeddings"]
