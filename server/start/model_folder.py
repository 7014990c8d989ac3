"""Checks a local model folder before vLLM looks for the name on a hub."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.files import read_text
from ropeswitch.factors.numbers import is_number, is_whole
from ropeswitch.factors.places import check_places
from ropeswitch.factors.quoted import quoted

# Fields that transformers computes with before it validates them.
_WHOLE_NUMBERS = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")
_ROPE = ("rope_parameters", "rope_scaling")
_FACTORS = ("short_factor", "long_factor")


def expanded(path: str) -> Path:
    """Return a path with a leading ``~`` or ``~USER`` replaced by the home folder, where there is one."""
    return Path(os.path.expanduser(path))


def check_model_folder(model: str) -> None:
    """Check that a model named by a path is a folder with a readable config; names on a hub are left for vLLM to find.

    Raises:
        UsageError: naming the folder, file or field and what is wrong with it.
    """
    path = expanded(model)
    if not path.exists():
        if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
            raise UsageError(f"MODEL: there is no folder {model!r}")
        return
    if path.is_file():
        hint = "; GGUF files are not supported, so use the folder of the original weights" if is_gguf(path) else ""
        raise UsageError(
            f"MODEL: {model!r} is a file; it must be a folder with a config.json, or a name on the hub{hint}"
        )
    if path.is_dir() and not any((path / name).exists() for name in ("config.json", "params.json")):
        raise UsageError(f"MODEL: the folder {model!r} has no config.json")
    config = path / "config.json"
    if config.exists():
        name = f"MODEL: {str(config)!r}"
        check_fields(name, read_config(name, config))


def is_gguf(path: Path) -> bool:
    """Whether a file is a model in llama.cpp's format."""
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def check_fields(name: str, values: Mapping[str, Any]) -> None:
    """Check the types of the config fields that every RoPE model has; a field may be missing or null.

    Raises:
        UsageError: naming the field, its value and what is allowed.
    """
    for field in _WHOLE_NUMBERS:
        value = values.get(field)
        if value is not None and not is_whole(value, 1, math.inf):
            raise UsageError(f"{name}: {field}: {quoted(value)} must be a whole number of at least 1")
    for field in _ROPE:
        rope = values.get(field)
        if rope is not None and not isinstance(rope, dict):
            raise UsageError(f"{name}: {field}: {quoted(rope)} must be a JSON object")
        for key in _FACTORS:
            if rope and key in rope and not (isinstance(rope[key], list) and all(map(is_number, rope[key]))):
                raise UsageError(f"{name}: {field}.{key}: {quoted(rope[key])} must be a list of numbers")
        if rope and (part := rope.get("partial_rotary_factor")) is not None and not is_number(part):
            raise UsageError(f"{name}: {field}.partial_rotary_factor: {quoted(part)} must be a number")
    try:
        check_places(values)
    except FactorError as error:
        raise UsageError(f"{name}: {error}") from error


def read_config(name: str, config: Path) -> dict[str, Any]:
    """Return the object in a model's config. As in transformers, and unlike in factor files, Infinity is allowed.

    Raises:
        UsageError: naming the config and what is wrong with it.
    """
    try:
        values = json.loads(read_text(config))
    except FactorError as error:
        raise UsageError(f"{name} {error}") from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{name} must hold a JSON object, found {quoted(values)}")
    return values
