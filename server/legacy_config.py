"""Configs that call LongRoPE ``su``, its first name, as the first Phi-3 checkpoints do.

transformers 5.19 renames the type while it reads the config, but then misses the window that those configs keep at their
top level, and gives up. So the engine is shown a copy of the config that is written in today's way.
"""

import atexit
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any


def modern(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config with ``su`` written as ``longrope``, its window inside the rotary parameters; None where it is not ``su``.

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


def folder_of(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Write JSON files into a folder that is removed when this process ends.

    Args:
        files: The values of each file, by its name.

    Returns:
        The folder's path.
    """
    folder = mkdtemp(prefix="ropeswitch-config-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, values in files.items():
        Path(folder, name).write_text(json.dumps(values), encoding="utf-8")
    return folder
