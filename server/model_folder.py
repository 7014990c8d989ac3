"""What can be wrong with a local model folder, told before vLLM looks for the name on a hub."""

import json
from pathlib import Path

from ropeswitch.server.errors import UsageError


def check_model_folder(model: str) -> None:
    """Check that a model named by a path is a folder with a readable config.

    Args:
        model: The MODEL argument: a folder, or a name on a hub, which is left for vLLM to find.

    Raises:
        UsageError: naming the folder or file and what is wrong with it.
    """
    path = Path(model).expanduser()
    if not path.exists():
        if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
            raise UsageError(f"MODEL: there is no folder {model!r}")
        return
    if path.is_dir() and not any((path / name).exists() for name in ("config.json", "params.json")):
        raise UsageError(f"MODEL: the folder {model!r} has no config.json")
    config = path / "config.json"
    if config.exists():
        try:
            json.loads(config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UsageError(f"MODEL: {str(config)!r} is not valid JSON: {error}") from error
