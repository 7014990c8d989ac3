"""Transformers as the reference: one forward over the whole sequence, with YaRN's frequencies of each set forced on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.exactness.reference import Oracle
from tests.matrix.tiny import WINDOW

# Where the parts of a model that text-only requests never run have their rotary modules.
OTHER_TOWERS = ("visual", "vision", "audio", "encoder", "speech", "talker", "image", "token2wav")
POSITIONS = 512


def yarn(theta: float, pairs: int, factor: float, trained: Mapping[str, Any]) -> tuple[torch.Tensor, float]:
    """Inverse frequencies, ``[pairs]``, and attention scale of YaRN on the window, as transformers forms them.

    ``trained`` are YaRN's other parameters, if the model was trained with it.
    """
    rope = {"rope_theta": theta, "original_max_position_embeddings": WINDOW} | dict(trained)
    rope |= {"rope_type": "yarn", "factor": factor}
    config = LlamaConfig(
        hidden_size=2 * pairs, num_attention_heads=1, max_position_embeddings=WINDOW, rope_parameters=rope
    )
    return ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")


@dataclass(frozen=True)
class Frequencies:
    """Inverse frequencies of a rotary module of transformers: a buffer, or GPT-J's table of sines and cosines."""

    module: torch.nn.Module
    name: str
    plain: torch.Tensor
    scale: float

    def force(self, factor: float, trained: Mapping[str, Any]) -> None:
        """Put YaRN of ``factor`` in, or positions interpolated by it; 1 restores the plain frequencies."""
        frequencies, scale = self.plain, self.scale
        if trained.get("rope_type") == "linear":
            frequencies = frequencies / factor
        elif factor != 1:
            pairs = len(self.plain)
            theta = float(f"{float(self.plain[-1].double()) ** (-pairs / (pairs - 1)):.5g}")
            frequencies, scale = yarn(theta, pairs, factor, trained)
        if self.name == "embed_positions":
            angles = torch.arange(POSITIONS, dtype=torch.float64)[:, None] * frequencies.double()
            self.module.embed_positions = torch.cat((angles.sin(), angles.cos()), dim=1).float() * scale
        else:
            getattr(self.module, self.name).copy_(frequencies)
            setattr(self.module, self.name.replace("inv_freq", "attention_scaling"), scale)


def rotary_buffers(model: torch.nn.Module) -> list[Frequencies]:
    """The frequencies of the text decoder that a ladder scales: all of them, or those of global layers; none are known of
    some models."""
    found = []
    for path, module in model.named_modules():
        if any(tower in path for tower in OTHER_TOWERS):
            continue
        names = [name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
        names = [name for name in names if "original" not in name]
        if len(names) > 1:
            names = [name for name in names if name.startswith("full_attention")]
        for name in names:
            scale = getattr(module, name.replace("inv_freq", "attention_scaling"))
            found.append(Frequencies(module, name, getattr(module, name).clone(), scale))
        if isinstance(table := getattr(module, "embed_positions", None), torch.Tensor) and not names:
            pairs = table.shape[1] // 2
            plain = 10000.0 ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
            found.append(Frequencies(module, "embed_positions", plain, 1.0))
    return found


@dataclass
class HuggingFace(Oracle):
    """A model of transformers.

    Attributes:
        model: The model.
        factors: YaRN's factor by the longest sequence of each set, rising.
        trained: YaRN's other parameters, if the model was trained with it.
    """

    model: torch.nn.Module
    factors: Mapping[int, float]
    trained: Mapping[str, Any] = field(default_factory=dict)
    _cache: dict[tuple[float, tuple[int, ...]], torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # vLLM's Transformers backend wraps the classes of decoders, which then ask this of every model.
        for module in self.model.modules():
            module.do_not_compile = True
        self.buffers = rotary_buffers(self.model) if len(self.factors) > 1 else []

    def log_probs(self, tokens: list[int]) -> torch.Tensor:
        return self.under(self.set_at(len(tokens)), tokens)

    def under(self, factor: float, tokens: Sequence[int]) -> torch.Tensor:
        """Log-probabilities as :meth:`Oracle.log_probs`, with YaRN of ``factor`` whatever the length."""
        key = (factor, tuple(tokens))
        if key not in self._cache:
            for each in self.buffers:
                each.force(factor, self.trained)
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
            self._cache[key] = logits.float().log_softmax(-1)
        return self._cache[key]

    def worst_of(self, prompt: list[int], output: list[int], log_probs: list[float]) -> tuple[float, str]:
        """The largest error in log-probability of a greedy continuation, and where it is."""
        places = zip(output, log_probs, self.rows(prompt, output), strict=True)
        errors = [error_of(log_prob, float(row[token]), float(row.max())) for token, log_prob, row in places]
        worst = max(errors)
        return worst, f"token {len(prompt) + errors.index(worst)} after a prompt of {len(prompt)}"

    def closest_sets(self, tokens: list[int]) -> float:
        """The largest difference in the next token's log-probabilities between the two sets that differ least."""
        rows = [self.under(factor, tokens)[-1] for factor in self.factors.values()]
        return min(float((row - other).abs().max()) for row, other in combinations(rows, 2))

    def set_at(self, length: int) -> float:
        return next(factor for end, factor in self.factors.items() if length <= end)


def error_of(log_prob: float, wanted: float, best: float) -> float:
    """How far a token's log-probability is from the reference's, and the token from the best; infinite if one is NaN."""
    error = max(abs(log_prob - wanted), best - wanted)
    return error if math.isfinite(log_prob + wanted + best) else math.inf
