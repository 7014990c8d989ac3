"""Rewrites configs that call LongRoPE by its original name ``su``, as the first Phi-3 checkpoints do.

transformers 5.19 renames the type while it reads the config, but then fails to find the window, which those configs have at
their top level. So the engine reads config and tokenizer from a folder that differs from the model's only in the config.
"""

import atexit
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any


def modern(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a config with ``su`` renamed to ``longrope`` and the window in its rotary parameters; None for other types.

    Args:
        config: The values of a ``config.json``.
    """
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    rope = config.get(key)
    if not isinstance(rope, Mapping) or rope.get("rope_type", rope.get("type")) != "su":
        return None
    renamed = {name: value for name, value in rope.items() if name != "type"} | {"rope_type": "longrope"}
    if (window := config.get("original_max_position_embeddings")) is not None:
        renamed.setdefault("original_max_position_embeddings", window)
    return {**config, key: renamed}


def modern_folder(model: Path, config: Mapping[str, Any]) -> str:
    """Make a folder of links to a model's files, with another config; it is deleted when this process exits.

    Args:
        model: The model's folder.
        config: The values of the ``config.json`` to write.

    Returns:
        The new folder's path.
    """
    folder = mkdtemp(prefix="ropeswitch-config-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in model.resolve().iterdir():
        if path.name != "config.json":
            Path(folder, path.name).symlink_to(path)
    Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
