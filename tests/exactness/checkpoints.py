"""Tiny random checkpoints, made by transformers, that the engine and the reference both load."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, PreTrainedModel

from ropeswitch.factors.factor_set import FactorLadder, LayerFactors
from tests.exactness.as_transformers import uncompiled

VOCAB = 384
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip


def factors(pairs: int, smallest: float, largest: float) -> list[float]:
    """Geometric factors from ``smallest`` at the highest frequency to ``largest`` at the lowest."""
    return [smallest * (largest / smallest) ** (i / max(pairs - 1, 1)) for i in range(pairs)]


def by_layer(ladder: FactorLadder) -> FactorLadder:
    """A ladder of four sets with other factors and scales in each of two layers of the second and the fourth."""
    pairs, sets = len(ladder.sets[0].factors), list(ladder.sets)
    one, other = (LayerFactors(tuple(factors(pairs, 0.9 + 0.2 * at, 3.0 + 5 * at)), 1.1 - 0.2 * at) for at in (0, 1))
    for index, layers in ((1, (one, other)), (3, (other, one))):
        sets[index] = replace(sets[index], layers=layers)
    return FactorLadder(tuple(sets))


def longrope(pairs: int, window: int = 64) -> dict[str, Any]:
    return {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors(pairs, 1.0, 1.3),
        "long_factor": factors(pairs, 1.1, 9.0), "original_max_position_embeddings": window,
    }  # fmt: skip


def phi3(folder: Path, *, window: int = 64, maximum: int = 512, seed: int = 0, **changes: Any) -> Path:
    """A Phi-3 with a two-set ladder whose limit is ``window``; ``changes`` go into the config."""
    shape = SHAPE | changes
    head = shape["hidden_size"] // shape["num_attention_heads"]
    rotary = int(head * shape.pop("partial_rotary_factor", 1.0))
    rope = longrope(rotary // 2, window)
    if rotary != head:
        rope["partial_rotary_factor"] = rotary / head
    rope |= shape.pop("rope", {})
    config = Phi3Config(
        max_position_embeddings=maximum, original_max_position_embeddings=window, rope_parameters=rope, **shape
    )
    return save(Phi3ForCausalLM, config, folder, seed)


def llama(folder: Path, *, maximum: int = 64, seed: int = 0, **changes: Any) -> Path:
    """A Llama with plain RoPE, for ladders from a factor file."""
    config = LlamaConfig(max_position_embeddings=maximum, **(SHAPE | changes))
    return save(LlamaForCausalLM, config, folder, seed)


def of_family(
    folder: Path, family: str, rope: dict[str, Any], *, seed: int = 5, config: str | None = None, **values: Any
) -> Path:
    """A model of transformers' classes of that name with a window of 64 tokens; ``values`` go into the config."""
    shape = SHAPE | {"max_position_embeddings": 64} | values
    made = getattr(transformers, config or f"{family}Config")(rope_parameters=rope, **shape)
    return save(getattr(transformers, f"{family}ForCausalLM"), made, folder, seed)


def save(cls: type[PreTrainedModel], config: Any, folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    with uncompiled(config):
        model = cls(config).float().eval()
    spread(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def spread(model: torch.nn.Module) -> None:
    """Draw the weights anew, larger."""
    # Spread attention out: with transformers' small weights it is uniform, and rotation would not show in the tokens.
    for name, weight in model.named_parameters():
        if "norm" not in name and weight.dim() == 2:
            torch.nn.init.normal_(weight, std=1.6 / math.sqrt(weight.shape[1]))


def ladder_file(path: Path, sets: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"format": "ropeswitch-factors/1", "sets": sets}))
    return path
