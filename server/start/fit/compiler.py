"""Checks that a C++ compiler and Python's headers are installed if torch.compile needs them."""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from sysconfig import get_path
from typing import Any

from ropeswitch.factors.errors import UsageError

VARIABLE = "CXX"
_DEFAULT = "g++"
# torch's variables that disable compilation.
_DISABLED = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
# Value of vLLM's optimization level and compilation mode that disables compilation.
_NONE = (0, "0")


def check_compiler(args: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Refuse to start on a CPU if the model will be compiled but a C++ compiler or Python.h is missing.

    Args:
        args: Parsed by vLLM: ``enforce_eager``, ``optimization_level`` and ``compilation_config``.
        environment: This process's environment.

    Raises:
        UsageError: naming both remedies.
    """
    compiler = environment.get(VARIABLE, _DEFAULT)
    if not compiles(args, environment):
        return
    if shutil.which(compiler, path=environment.get("PATH")) is not None:
        _check_headers(Path(get_path("include")))
        return
    named = f"{VARIABLE}: {compiler!r}" if VARIABLE in environment else f"C++ compiler: {compiler}"
    raise UsageError(
        f"{named} was not found, and torch.compile needs it on a CPU; install g++, or start with --enforce-eager, which "
        "skips compilation and is slower"
    )


def _check_headers(folder: Path) -> None:
    if not (folder / "Python.h").exists():
        raise UsageError(
            f"Python's headers: there is no {folder / 'Python.h'}, and torch.compile needs it on a CPU; install Python's "
            "development package (Debian: python3-dev), or start with --enforce-eager, which skips compilation and is slower"
        )


def compiles(args: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Whether vLLM will compile the model for a CPU with these flags and this environment."""
    if any(environment.get(name) == "1" for name in _DISABLED):
        return False
    if args.enforce_eager or _value(args.optimization_level) in _NONE:
        return False
    config = args.compilation_config
    mode = config.get("mode") if isinstance(config, dict) else getattr(config, "mode", None)
    return _value(mode) not in _NONE


def _value(level: Any) -> Any:
    """Return the value of an enum member; other values unchanged."""
    return getattr(level, "value", level)
