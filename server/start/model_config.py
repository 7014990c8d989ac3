"""Reads the model's config for the command, before an engine does.

The first Phi-3 checkpoints call LongRoPE by its original name ``su``. transformers 5.19 renames the type while it reads the
config, but then fails to find the window, which those configs have at their top level. So the engine reads config and
tokenizer of such a model from a folder that differs from the model's only in the config.
"""

import atexit
import json
import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.config.text_config import TextConfig
from ropeswitch.model_patches.switch.config.text_config import text_config as read
from ropeswitch.server.start.model_folder import check_fields, check_model_folder
from ropeswitch.server.start.refusals import root_cause


def text_config(args: Namespace) -> TextConfig:
    """Return the model's Hugging Face text config with the user's ``--hf-overrides`` applied, as the engine would see it.

    For a local ``su`` config, sets ``hf_config_path`` and ``tokenizer`` to a folder with a rewritten copy.

    Raises:
        UsageError: when the model or its config cannot be read.
    """
    source = args.hf_config_path or args.model
    check_model_folder(source)
    check_fields("--hf-overrides", args.hf_overrides or {})
    try:
        path = Path(source, "config.json")
        config = modern(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
        if config is not None:
            args.hf_config_path = source = _folder_with(config, path.parent)
            args.tokenizer = args.tokenizer or source
        return read(args)
    except UnsupportedError as error:
        raise UsageError(str(error)) from error
    except Exception as error:
        # Only the user's model is read above, and its own code may raise any error.
        raise UsageError(f"MODEL: cannot read the config of {source!r}: {root_cause(error)}") from error


def modern(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a config with ``su`` renamed to ``longrope`` and the window in its rotary parameters; None for other types."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    rope = config.get(key)
    if not isinstance(rope, Mapping) or rope.get("rope_type", rope.get("type")) != "su":
        return None
    renamed = {name: value for name, value in rope.items() if name != "type"} | {"rope_type": "longrope"}
    if (window := config.get("original_max_position_embeddings")) is not None:
        renamed.setdefault("original_max_position_embeddings", window)
    return {**config, key: renamed}


def _folder_with(config: Mapping[str, Any], model: Path) -> str:
    """Make a folder of links to a model's files, with another config; it is deleted when this process exits."""
    folder = mkdtemp(prefix="ropeswitch-config-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in model.resolve().iterdir():
        if path.name != "config.json":
            Path(folder, path.name).symlink_to(path)
    Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
