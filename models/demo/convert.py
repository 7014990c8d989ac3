"""Converts the demo's GGUF file to a checkpoint that vLLM serves: safetensors, config, tokenizer and chat template."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo.scratch import scratch
from ropeswitch.models.demo.source import sha256

RECORD = "converted.json"
"""File of a finished checkpoint: sha256 of the GGUF file and of every other file in the folder. It is written last."""
_RECIPE = 1
"""Raised with every change to what is written, so that checkpoints of an older recipe are converted again."""


def convert(gguf: Path, folder: Path, say: Callable[[str], None]) -> None:
    """Write the model in ``gguf`` to ``folder``, unless its checkpoint is there already and no file of it has changed.

    The folder appears under its name when all of it is written. Weights are the dequantized float32 values that
    transformers computes; the tied output head is left out.

    Raises:
        InputError: when ``gguf`` cannot be read, or the folder holds something else.
    """
    source = sha256(gguf)
    if is_converted(folder, source):
        say(f"{folder} is there, checksums correct")
        return
    if folder.exists() and not (folder / RECORD).is_file():
        raise InputError(f"{folder}: exists and is no converted model; remove it, then run make demo again")
    with scratch(folder.with_name(f".{folder.name}.partial")) as partial:
        say(f"converting {gguf} to {folder}, about half a minute")
        _write(gguf, partial)
        files = {path.name: sha256(path) for path in sorted(partial.iterdir())}
        record = {"recipe": _RECIPE, "source_sha256": source, "files": files}
        (partial / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    say(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.0f} MB")


def is_converted(folder: Path, source_sha256: str) -> bool:
    """Whether ``folder`` holds the whole checkpoint of the GGUF file with this checksum, every file unchanged."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if record.get("recipe") != _RECIPE or record.get("source_sha256") != source_sha256:
        return False
    return all(
        (folder / name).is_file() and sha256(folder / name) == digest for name, digest in record["files"].items()
    )


def _write(gguf: Path, folder: Path) -> None:
    # Imported here: a finished checkpoint is checked without the seconds that these take.
    import torch
    from safetensors.torch import save_file
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ValueError, KeyError, OSError, IndexError, struct.error, ImportError) as error:
        raise InputError(f"{gguf}: transformers cannot read it: {error}") from error
    # The file's pre-tokenizer is `smollm`: single digits, then GPT-2's. transformers reads no such key and leaves digits
    # together with the spaces before them.
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
    """The model's config as a checkpoint of its own has it; ``save_pretrained`` refuses one read from GGUF."""
    config: dict[str, Any] = model.config.to_diff_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(name, None)
    return config | {"architectures": [type(model).__name__]}
