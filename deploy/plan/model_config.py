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


def as_path(model: str) -> Path:
    """Return MODEL as a path, which need not exist.

    Raises:
        UsageError: for the home folder of an unknown user.
    """
    return expanded("MODEL", model)


def find_config(model: str) -> Path:
    """Return the ``config.json`` of MODEL: a folder, the file itself, or a hub name whose config is in the local cache.

    Raises:
        UsageError: if it does not exist, naming what is missing.
    """
    path = as_path(model)
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


def read_model(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the config's name in messages, and its values.

    Raises:
        UsageError: naming the file, the field, its value and what is allowed.
    """
    name = f"MODEL: {str(path)!r}"
    config = read_config(name, path)
    architectures = config.get("architectures")
    if architectures is not None and not (
        isinstance(architectures, list) and all(isinstance(x, str) for x in architectures)
    ):
        raise UsageError(f"{name}: architectures: must be a list of names")
    check_fields(name, config)
    return name, config


def find_ladder(
    name: str, config: dict[str, Any], choice: Choice, max_model_len: int | None, native_window: int | None
) -> MadeLadder:
    """Return the ladder that ``ropeswitch serve`` would build for a model.

    Args:
        name: Name of the config in messages.
        config: Values of the config; ``model_type`` is one of :data:`~ropeswitch.deploy.plan.families.FAMILIES`.
        choice: Value of ``--ladder`` or ``--factors``.
        max_model_len: Maximum sequence length in tokens; None for the ladder's end.
        native_window: Window the model was trained with, in tokens, if the user gives it.

    Raises:
        UsageError: if the ladder cannot rotate the model, or ends before ``max_model_len``.
        FactorError: for an invalid factor file, rule or length, or invalid values in the config.
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
