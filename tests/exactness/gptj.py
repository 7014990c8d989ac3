"""GPT-J with YaRN: its layers in transformers read sines and cosines from a table, which no rope parameters reach."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GPTJConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.exactness.auto_cases import LONGEST, WINDOW
from tests.exactness.reference import Reference, load_model
from tests.exactness.static_reference import StaticReference

# The base that its code has; no config states it.
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def table(rope: Mapping[str, Any], rotary_dim: int) -> torch.Tensor:
    """The table that the layers read by position, ``[LONGEST, rotary_dim]``, sines then cosines, with YaRN if any."""
    pairs = rotary_dim // 2
    inverse, scale = ROPE["rope_theta"] ** -(torch.arange(pairs, dtype=torch.float64) / pairs), 1.0
    if rope["rope_type"] == "yarn":
        shape = {"hidden_size": rotary_dim, "num_attention_heads": 1, "max_position_embeddings": WINDOW}
        inverse, scale = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(rope_parameters=dict(rope), **shape), "cpu")
    angles = torch.arange(LONGEST).double()[:, None] * inverse.double()
    return torch.cat((angles.sin(), angles.cos()), dim=-1).float() * scale


def reference(folder: Path, sets: Mapping[int, Mapping[str, Any]]) -> StaticReference:
    """The checkpoint once for each set; ``sets`` has rotary parameters by the set's longest sequence, rising."""
    rotary_dim = GPTJConfig.from_pretrained(folder).rotary_dim
    by_end = {}
    for end, rope in sets.items():
        model = load_model(folder)
        for layer in model.transformer.h:
            layer.attn.embed_positions = table(rope, rotary_dim)
        by_end[end] = Reference(model)
    return StaticReference(by_end)
