"""Finds the config of the MODEL to plan for, without network access, and the ladder that the server would build for it."""

from pathlib import Path
from typing import Any

from ropeswitch.deploy.plan.families import FAMILIES
from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.ladders.choice import Choice
from ropeswitch.factors.ladders.choose import check_length, check_theta, choose
from ropeswitch.factors.ladders.made import MadeLadder
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.models.unsupported import check_model, check_rotation
from ropeswitch.server.start.model_folder import check_fields, check_model_folder, expanded, is_gguf, read_config


def read_model(model: str) -> tuple[str, dict[str, Any]]:
    """Return the config's name in messages, and its values; a UsageError names the file, the field and the value.

    ``model`` is a folder, a ``config.json``, or a hub name whose config is in the local cache.
    """
    path = _find(model)
    name = f"MODEL: {str(path)!r}"
    config = read_config(name, path)
    architectures = config.get("architectures")
    if not isinstance(architectures, list | None) or not all(isinstance(each, str) for each in architectures or ()):
        raise UsageError(f"{name}: architectures: must be a list of names")
    check_fields(name, config)
    return name, config


def _find(model: str) -> Path:
    path = expanded(model)
    if path.is_file() and not is_gguf(path):
        return path
    check_model_folder(model)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UsageError(f"MODEL: the folder {model!r} has no config.json")
        return path / "config.json"
    # This import takes a quarter of a second, and only hub names need it.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError as error:
        raise UsageError(f"MODEL: there is no folder {model!r}, and it is not a valid hub name") from error
    if not isinstance(cached, str):
        raise UsageError(
            f"MODEL: there is no folder {model!r}, and the local Hugging Face cache has no config.json under that name; "
            f"download it first, for example with: hf download {model} config.json"
        )
    return Path(cached)


def find_ladder(
    name: str, config: dict[str, Any], choice: Choice, max_model_len: int | None, native_window: int | None
) -> MadeLadder:
    """Return the ladder that ``ropeswitch serve`` would build for a config of a known family, called ``name`` in messages.

    Lengths are in tokens, None where the user states none. A UsageError or FactorError names what the ladder cannot serve.
    """
    if rope_parameters(config).get("rope_theta") is None:
        config = config | {"rope_theta": FAMILIES[config["model_type"]].default_theta}
    try:
        check_rotation(config)
        made = choose(choice, config, max_model_len, native_window)
        check_theta(made, check_model(config, made.ladder))
    except UnsupportedError as error:
        raise UsageError(f"{name}: {error}") from error
    check_length(max_model_len, made.ladder)
    return made
