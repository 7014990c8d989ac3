"""Makes the checkpoint of one architecture, by its recipe."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from mistral_common.tokens.tokenizers.base import SpecialTokens

from tests.matrix import made_up
from tests.matrix.recipe import Recipe
from tests.matrix.references import HuggingFace
from tests.matrix.tiny import RESERVED, SIZES, WINDOW, save, tiny
from tests.server.checkpoint import byte_tokenizer


def make(architecture: str, recipe: Recipe, folder: Path) -> tuple[Any, str]:
    """Save a checkpoint, and load it with transformers.

    Returns:
        The model of transformers, None where only its config was saved and weights are to be made in vLLM; and why so.

    Raises:
        ValueError: for an architecture without a class or a recipe.
    """
    if recipe.missing:
        raise ValueError(recipe.missing)
    if recipe.tokens is not None:
        _save_tokenizer(recipe.tokens, folder)
    if recipe.engine.get("tokenizer_mode") == "mistral":
        _save_mistral_tokenizer(folder)
    if recipe.processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(dict(recipe.processor)))
    if recipe.fields is not None:
        made_up.save(architecture, recipe.fields, folder)
        return None, "no class in transformers"
    kind = getattr(transformers, recipe.family or architecture, None)
    if kind is None:
        raise ValueError("transformers has no class for it, and no recipe has its config")
    config = tiny(kind.config_class, recipe.config)
    model, why = None, "transformers stops"
    try:
        save(kind, config, folder)
        model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        HuggingFace(model, {WINDOW: 1.0}).log_probs(list(range(3, WINDOW)))
    except Exception as error:
        # Not every class of transformers runs everywhere; vLLM's model of the same config may.
        model, why = None, f"transformers stops: {type(error).__name__}"
        config.save_pretrained(folder)
    # Some have another name at transformers; the backend's own names are of no model.
    if recipe.engine.get("model_impl") is None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [architecture]}))
    return model, why


def _save_tokenizer(names: Sequence[str] | Mapping[str, str], folder: Path) -> None:
    """One token for each byte, and the named ones behind those that prompts are made of."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<unused{number}>" for number in range(RESERVED - len(tokenizer))])
    tokenizer.add_tokens(list(names.values() if isinstance(names, Mapping) else names), special_tokens=True)
    if isinstance(names, Mapping):
        tokenizer._set_model_specific_special_tokens(dict(names))
    tokenizer.save_pretrained(folder)


def _save_mistral_tokenizer(folder: Path) -> None:
    """One token for each byte after those that Mistral reserves, and how sounds are sampled."""
    special = [{"rank": rank, "token_str": token.value, "is_control": True} for rank, token in enumerate(SpecialTokens)]
    count = {"default_vocab_size": 256 + len(special), "default_num_special_tokens": len(special)}
    vocab = [{"rank": byte, "token_bytes": b64encode(bytes([byte])).decode(), "token_str": None} for byte in range(256)]
    file = SIZES["mistral_tokenizer"] | {"vocab": vocab, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(file | {"config": file["config"] | count}))
