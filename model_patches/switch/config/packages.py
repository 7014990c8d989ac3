"""Checks for packages that vLLM's code for a model needs and the CPU engine's environment lacks."""

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ropeswitch.model_patches.switch.config.settings import UnsupportedError


def check_torchvision(architectures: Sequence[str]) -> None:
    """Refuse a model, by its config's class names, whose code needs torchvision if it cannot be imported.

    vLLM would only report that the model cannot be inspected, or fail later if an earlier inspection is cached.

    Raises:
        UnsupportedError: with the torch that torchvision has to be built for.
    """
    # If it is installed, vLLM has already imported it.
    try:
        importlib.import_module("torchvision")
        return
    except (ImportError, RuntimeError) as error:
        missing = error
    for name in architectures:
        if _needs_torchvision(name):
            raise UnsupportedError(
                f"MODEL: {name} needs torchvision, which cannot be imported ({missing}); install the build for torch "
                f"{version('torch')}"
            )


def _needs_torchvision(architecture: str) -> bool:
    """Return whether vLLM's module for an architecture fails to import because of torchvision; vLLM reports other errors."""
    from vllm.model_executor.models.registry import ModelRegistry

    module = getattr(ModelRegistry.models.get(architecture), "module_name", None)
    if module is None:
        return False
    # A broken build fails like a missing one, with an error that names the module.
    sys.modules["torchvision"] = None  # type: ignore[assignment]
    try:
        importlib.import_module(module)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ImportError) and (cause.name or "").partition(".")[0] == "torchvision":
                return True
            cause = cause.__cause__ or cause.__context__
    finally:
        sys.modules.pop("torchvision", None)
    return False
