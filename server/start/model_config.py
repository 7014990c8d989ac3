"""Reads the model's config for the command, before an engine does."""

import json
from argparse import Namespace
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.config.text_config import TextConfig
from ropeswitch.model_patches.switch.config.text_config import text_config as read
from ropeswitch.server.start import legacy_config
from ropeswitch.server.start.model_folder import check_fields, check_model_folder


def text_config(args: Namespace) -> TextConfig:
    """Return the model's Hugging Face text config with the user's ``--hf-overrides`` applied, as the engine would see it.

    Raises:
        UsageError: when the model or its config cannot be read.
    """
    source = args.hf_config_path or args.model
    check_model_folder(source)
    overrides = args.hf_overrides or {}
    check_fields("--hf-overrides", overrides)
    try:
        source = _without_su(args, source)
        return read(args)
    except UnsupportedError as error:
        raise UsageError(str(error)) from error
    except Exception as error:
        # Only the user's model is read above, and its own code may raise any error.
        raise UsageError(f"MODEL: cannot read the config of {source!r}: {_reason(error)}") from error


def _without_su(args: Namespace, source: str) -> str:
    """Make the engine read a local ``su`` config from a rewritten copy; return where to read the config."""
    path = Path(source, "config.json")
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if (copy := legacy_config.modern(config)) is None:
        return source
    args.hf_config_path = legacy_config.modern_folder(Path(source), copy)
    args.tokenizer = args.tokenizer or args.hf_config_path
    return str(args.hf_config_path)


def _reason(error: Exception) -> str:
    """Return the message of an error raised while reading a config, as one line."""
    lines = str(error).strip().splitlines()
    if isinstance(error, StrictDataclassError):
        return " ".join(line.strip() for line in lines)  # the field or check, then the error in it
    # transformers' messages are long; the first line names the fault.
    if isinstance(error, ValueError | OSError) and lines:
        return lines[0]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
