"""A target of one layer, and drafts of each kind that predict what it predicts.

A draft of EAGLE's kind sees a token's embedding and the target's hidden state of the token before. These heads ignore the
latter and repeat the target's only layer, so that with the target's angles nearly every draft is accepted, apart from the
first token of a sequence, which no such head sees.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from tests.exactness import checkpoints
from tests.exactness.checkpoints import SHAPE, longrope

WINDOW, LONGEST = 64, 512
# Values per head, query heads and hidden values of the target.
HEAD, HEADS, HIDDEN = 32, SHAPE["num_attention_heads"], SHAPE["hidden_size"]
LAYER = "model.layers.0."
Weights = dict[str, torch.Tensor]
ROPE = longrope(HEAD // 2)


@dataclass(frozen=True)
class Pair:
    """A target and what drafts for it."""

    target: Path  # The folder that the engine serves.
    reference: Path  # The folder that transformers loads.
    speculative: dict[str, Any]  # The engine's ``speculative_config``.
    accepted: float  # The least share of drafts that the target accepts.


def target(
    folder: Path, cls: type[PreTrainedModel] = LlamaForCausalLM, config: Any = LlamaConfig, **changes: Any
) -> Path:
    """A model of one layer on a ladder of two sets; its embeddings are as if normalised already."""
    shape = SHAPE | {"num_hidden_layers": 1} | changes
    rope = dict(ROPE)
    checkpoints.save(
        cls,
        config(
            max_position_embeddings=LONGEST, original_max_position_embeddings=WINDOW, rope_parameters=rope,
            head_dim=HEAD, tie_word_embeddings=False, **shape,
        ),
        folder, 0,
    )  # fmt: skip
    weights = read(folder)
    embeddings = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = embeddings / embeddings.square().mean(-1, keepdim=True).sqrt()
    write(folder, weights)
    return folder


def read(folder: Path) -> Weights:
    return load_file(folder / "model.safetensors")


def write(folder: Path, weights: Weights, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(
        {name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def noisy(weights: Weights, noise: float) -> Weights:
    """The same weights with random errors of this part of their size."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: value + noise * value.std() * torch.randn(value.shape, generator=generator) if value.dim() == 2 else value
        for name, value in weights.items()
    }


def draft_model(folder: Path, noise: float = 0.0, **changes: Any) -> Pair:
    """The target itself, or one with errors, as a draft model of its own."""
    served = target(folder / "target", **changes)
    draft = write(folder / "draft", noisy(read(served), noise), config_of(served))
    return Pair(served, served, {"method": "draft_model", "model": str(draft)}, 0.95)


def eagle(folder: Path, noise: float = 0.0, **changes: Any) -> Pair:
    served = target(folder / "target", **changes)
    weights = {
        name.removeprefix("model."): value
        for name, value in noisy(read(served), noise).items()
        if name.startswith(LAYER) and not name.endswith("input_layernorm.weight")
    }
    weights["fc.weight"] = torch.cat((torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)), dim=1)
    draft = write(folder / "draft", weights, config_of(served))
    return Pair(served, served, {"method": "eagle", "model": str(draft)}, 0.4)


def eagle3(folder: Path, noise: float = 0.0, **changes: Any) -> Pair:
    """The head's residual stream is the hidden state, so that more heads of attention copy the embedding into it.

    From its second draft on, the hidden state is its own and disturbs it.
    """
    served = target(folder / "target", **changes)
    layer = {
        name.removeprefix(LAYER): value for name, value in noisy(read(served), noise).items() if name.startswith(LAYER)
    }
    queries, keys, values = (layer[f"self_attn.{name}_proj.weight"] for name in "qkv")
    groups = HEADS // SHAPE["num_key_value_heads"]
    keys, values = (repeated(each, groups) for each in (keys, values))
    # A token attends to its equals alone, whose embeddings are its own.
    copies = HIDDEN // HEAD
    same = 3.0 * torch.eye(HIDDEN)
    queries, keys = torch.cat((queries, same)), torch.cat((keys, same))
    values = torch.cat((values, torch.eye(HIDDEN)))
    nothing = torch.zeros(len(queries), HIDDEN)
    weights = {
        **{f"midlayer.{name}": value for name, value in layer.items() if "proj" not in name or "mlp" in name},
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "midlayer.self_attn.q_proj.weight": torch.cat((queries, nothing), dim=1),
        "midlayer.self_attn.k_proj.weight": torch.cat((keys, nothing), dim=1),
        "midlayer.self_attn.v_proj.weight": torch.cat((values, nothing), dim=1),
        "midlayer.self_attn.o_proj.weight": torch.cat((layer["self_attn.o_proj.weight"], torch.eye(HIDDEN)), dim=1),
        "fc.weight": torch.zeros(HIDDEN, HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": read(served)["lm_head.weight"],
    }
    config = config_of(served) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_attention_heads": HEADS + copies,
        "num_key_value_heads": HEADS + copies,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]},
        "eagle_aux_hidden_state_layer_ids": [1],
    }
    draft = write(folder / "draft", weights, config)
    return Pair(served, served, {"method": "eagle3", "model": str(draft)}, 0.2)


def mtp(folder: Path, noise: float = 0.0, **changes: Any) -> Pair:
    """MiMo: Qwen 2 with a layer that predicts the token after the next, in the checkpoint of the target itself."""
    reference = target(folder / "reference", Qwen2ForCausalLM, Qwen2Config, **changes)
    weights = read(reference)
    block = {
        name.replace(LAYER, "model.mtp_layers.0."): value.clone()
        for name, value in noisy(weights, noise).items()
        if name.startswith(LAYER)
    }
    block["model.mtp_layers.0.input_proj.weight"] = torch.cat((torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)), dim=1)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        block[f"model.mtp_layers.0.{name}.weight"] = torch.ones(HIDDEN)
    config = config_of(reference) | {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    return Pair(write(folder / "target", weights | block, config), reference, {"method": "mtp"}, 0.4)


def medusa(folder: Path, **changes: Any) -> Pair:
    """Heads that know nothing: of few words they hit one now and then."""
    served = target(folder / "target", **changes)
    vocabulary = config_of(served)["vocab_size"]
    generator = torch.Generator().manual_seed(3)
    weights = {f"blocks.{i}.layers.0.weight": torch.zeros(HIDDEN, HIDDEN) for i in range(3)}
    weights |= {f"lm_heads.{i}.weight": torch.randn(vocabulary, HIDDEN, generator=generator) for i in range(3)}
    config = {
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": HIDDEN, "vocab_size": vocabulary,
        "num_heads": 3, "num_hidden_layers": 1,
    }  # fmt: skip
    draft = write(folder / "draft", weights, config)
    return Pair(served, served, {"method": "medusa", "model": str(draft)}, 0.0)


def repeated(weight: torch.Tensor, times: int) -> torch.Tensor:
    """Key or value heads, each for every query head that reads it."""
    return weight.unflatten(0, (-1, HEAD)).repeat_interleave(times, dim=0).flatten(0, 1)


KINDS: dict[str, Callable[..., Pair]] = {
    "draft_model": draft_model,
    "eagle": eagle,
    "eagle3": eagle3,
    "mtp": mtp,
    "medusa": medusa,
}
