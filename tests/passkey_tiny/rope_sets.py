"""Forces one factor set on a Hugging Face Phi-3 model, whatever the length of its input.

Unforced, Hugging Face chooses by the length of the whole input (`dynamic_rope_update` in
transformers.modeling_rope_utils): long as soon as max(position) + 1 exceeds
original_max_position_embeddings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn
from transformers import Phi3Config, Phi3ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SetName = Literal["short", "long"]


class FixedRotary(nn.Module):
    """Stands in for `Phi3RotaryEmbedding` and rotates every length with one factor set."""

    inv_freq: torch.Tensor

    def __init__(self, config: Phi3Config, name: SetName) -> None:
        super().__init__()
        limit = config.rope_parameters["original_max_position_embeddings"]
        inv_freq, self.attention_scaling = ROPE_INIT_FUNCTIONS["longrope"](
            config, seq_len=limit if name == "short" else limit + 1
        )
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x gives the dtype; position_ids [batch, n] gives cos and sin of [batch, n, rotary_dim]."""
        angles = position_ids[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


def right_set(config: Phi3Config, length: int) -> SetName:
    """The set Hugging Face uses for a whole sequence of `length` tokens."""
    limit = config.rope_parameters["original_max_position_embeddings"]
    return "long" if length > limit else "short"


@contextmanager
def force_set(model: Phi3ForCausalLM, name: SetName | None) -> Iterator[None]:
    """Within the block `model` rotates with the named set; with None, by Hugging Face's own rule."""
    own = model.model.rotary_emb
    if name is not None:
        model.model.rotary_emb = FixedRotary(model.config, name)
    try:
        yield
    finally:
        model.model.rotary_emb = own
