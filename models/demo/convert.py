"""Converts the demo's GGUF file to a checkpoint for vLLM: safetensors, config, tokenizer and chat template."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo.scratch import scratch
from ropeswitch.models.demo.source import sha256

RECORD = "converted.json"
"""File that names the conversion and its GGUF file; the folder appears under its name only when it is complete."""
_RECIPE = 1
"""Version of the conversion; raise it with every change of the output, so that older checkpoints are converted again."""


def convert(gguf: Path, folder: Path, say: Callable[[str], None]) -> None:
    """Convert ``gguf`` to a checkpoint in ``folder``, unless its checkpoint is already there.

    Weights are dequantized to float32 by transformers; the tied output head is left out.

    Raises:
        InputError: when the folder contains something else.
    """
    record, made = folder / RECORD, json.dumps({"recipe": _RECIPE, "source_sha256": sha256(gguf)})
    if folder.exists():
        if not record.is_file():
            raise InputError(f"{folder}: exists and is not a converted model; remove it, then run make demo again")
        if record.read_text(encoding="utf-8") == made:
            say(f"{folder}: already converted")
            return
    with scratch(folder.with_name(f".{folder.name}.partial")) as partial:
        say(f"converting {gguf} to {folder}, about half a minute")
        _write(gguf, partial)
        (partial / RECORD).write_text(made, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    say(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.0f} MB")


def _write(gguf: Path, folder: Path) -> None:
    # Imported here, so that checking a finished checkpoint does not take seconds for imports.
    import torch
    from safetensors.torch import save_file
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file's pre-tokenizer is `smollm`: single digits, then GPT-2's. transformers ignores that key and joins digits with
    # the spaces before them.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
    model.generation_config._from_model_config = False
    model.generation_config.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(_config(model), indent=2) + "\n", encoding="utf-8")
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    save_file(
        {name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def _config(model: Any) -> dict[str, Any]:
    """Return the model's config for a standalone checkpoint; ``save_pretrained`` rejects one read from GGUF."""
    config: dict[str, Any] = model.config.to_diff_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(name, None)
    return config | {"architectures": [type(model).__name__]}
