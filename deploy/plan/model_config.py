"""Find the config of the MODEL to plan for, on this machine alone, and the ladder that will rotate it."""

from pathlib import Path
from typing import Any

from ropeswitch.deploy.plan.families import FAMILIES
from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.ladders.choice import Choice
from ropeswitch.factors.ladders.choose import check_theta, choose
from ropeswitch.factors.ladders.made import MadeLadder
from ropeswitch.model_patches.switch.settings import UnsupportedError
from ropeswitch.model_patches.switch.unsupported import check_model, check_rotation
from ropeswitch.server.model_folder import check_fields, check_model_folder, expanded, read_config


def as_path(model: str) -> Path:
    """MODEL as a path, which need not exist.

    Raises:
        UsageError: for the home folder of an unknown user.
    """
    return expanded("MODEL", model)


def find_config(model: str) -> Path:
    """The ``config.json`` of MODEL: a folder, the file itself, or a hub name whose config is in the local cache.

    Raises:
        UsageError: saying what is not there.
    """
    path = as_path(model)
    if path.is_file():
        return path
    check_model_folder(model)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UsageError(f"MODEL: the folder {model!r} has no config.json")
        return path / "config.json"
    # A quarter of a second of imports, and only hub names need it.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError as error:
        raise UsageError(f"MODEL: there is no folder {model!r}, and it is not a hub name either") from error
    if not isinstance(cached, str):
        raise UsageError(
            f"MODEL: there is no folder {model!r}, and the local Hugging Face cache has no config.json under that name; "
            f"download it first, for instance with: hf download {model} config.json"
        )
    return Path(cached)


def read_model(path: Path) -> tuple[str, dict[str, Any]]:
    """What messages call the config, and its values.

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
    """The ladder that ``ropeswitch serve`` makes for a model.

    Args:
        name: What messages call the config.
        config: Its values; their ``model_type`` is one of :data:`~ropeswitch.deploy.plan.families.FAMILIES`.
        choice: What ``--ladder`` or ``--factors`` asks for.
        max_model_len: The longest sequence, tokens; None for the ladder's end.
        native_window: The window that the model was trained with, tokens, where the user states it.

    Raises:
        UsageError: when the model cannot be rotated by the ladder, or the ladder ends before ``max_model_len``.
        FactorError: for a wrong factor file, rule or length, or wrong values in the config.
    """
    if rope_parameters(config).get("rope_theta") is None:
        config = config | {"rope_theta": FAMILIES[config["model_type"]].default_theta}
    try:
        check_rotation(config)
        made = choose(choice, config, max_model_len, native_window)
        check_theta(made, check_model(config, made.ladder))
    except UnsupportedError as error:
        raise UsageError(f"{name}: {error}") from error
    ladder = made.ladder
    if max_model_len is not None and max_model_len > ladder.max_length:
        raise UsageError(
            f"--max-model-len: {max_model_len} exceeds {ladder.max_length}, where the last factor set, "
            f"{ladder.names[-1]!r}, ends"
        )
    return made
