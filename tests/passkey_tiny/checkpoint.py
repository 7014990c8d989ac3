"""Checkpoints of a training run and the finished model's folder, never left half-written."""

import os
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import Phi3ForCausalLM, PreTrainedTokenizerBase

from tests.passkey_tiny.recipe import Recipe

CHECKPOINT = "checkpoint.pt"


def save_checkpoint(
    folder: Path, recipe: Recipe, done: int, model: Phi3ForCausalLM, optimizer: torch.optim.AdamW
) -> None:
    """Writes the state after `done` steps; an interruption leaves the previous checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "recipe": asdict(recipe),
        "done": done,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    new = folder / f"{CHECKPOINT}.new"
    torch.save(state, new)
    os.replace(new, folder / CHECKPOINT)


def load_checkpoint(folder: Path, recipe: Recipe, model: Phi3ForCausalLM, optimizer: torch.optim.AdamW) -> int:
    """Restores the state saved in `folder`; returns the number of steps done, 0 without one.

    Raises:
        ValueError: the checkpoint was made by another recipe.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    if state["recipe"] != asdict(recipe):
        raise ValueError(f"{path} was made by another recipe; delete it or give another --out")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["done"])


def write_model(folder: Path, model: Phi3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes model (as bfloat16) and tokenizer to `folder`; other files there, the card say, are kept.

    The finished folder is put in place by renaming, so that `folder` never mixes two models.
    """
    new, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    for left_over in (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(new)
    tokenizer.save_pretrained(new)
    if folder.exists():
        for path in folder.iterdir():
            if not (new / path.name).exists():
                shutil.copy2(path, new / path.name)
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)
