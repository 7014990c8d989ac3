"""Find the config of the MODEL to plan for, on this machine alone, and the ladder that will rotate it."""

from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.file import load
from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.model_patches.switch.settings import UnsupportedError
from ropeswitch.model_patches.switch.unsupported import check_model
from ropeswitch.server.model_folder import check_fields, check_model_folder, read_config


def as_path(model: str) -> Path:
    """MODEL as a path, which need not exist."""
    return Path(model).expanduser()


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
        raise UsageError(f"MODEL: there is no folder {model!r}, and it is no name on a hub either") from error
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


def find_ladder(name: str, config: dict[str, Any], factors: str | None) -> FactorLadder | None:
    """The ladder of the factor file, or of the config; None where there is neither.

    Raises:
        UsageError: when the model cannot be rotated by the ladder.
        FactorError: for a wrong factor file or wrong factors in the config.
    """
    ladder = load(factors).ladder if factors is not None else ladder_from_config(config)
    if ladder is not None:
        try:
            check_model(config, ladder)
        except UnsupportedError as error:
            raise UsageError(f"{name}: {error}") from error
    return ladder
