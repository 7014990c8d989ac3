"""Checks vLLM's environment variables before vLLM is imported, which fails on an invalid one with a traceback."""

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.quoted import quoted

_PREFIX = "VLLM_"
_LEVEL, _CONFIG = "VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH"


def check(environment: Mapping[str, str]) -> None:
    """Refuse a value that vLLM's own getter of the variable rejects, or that its logging cannot use.

    Args:
        environment: This process's environment, which vLLM's getters read.

    Raises:
        UsageError: naming the variable, its value and vLLM's reason.
    """
    readers = _readers()
    for name in sorted(name for name in environment if name.startswith(_PREFIX)):
        if (read := readers.get(name)) is None:  # vLLM warns about unknown ones
            continue
        try:
            with _without_imports():
                read()
        except ImportError:  # a getter that imports other parts of vLLM
            continue
        except (ValueError, OSError) as error:
            raise UsageError(
                f"{name}: {quoted(environment[name])} is not valid: {error}; correct it, or unset it"
            ) from error
    levels = logging.getLevelNamesMapping()
    if (level := environment.get(_LEVEL)) and level.upper() not in levels:
        raise UsageError(f"{_LEVEL}: {quoted(level)} must be {', '.join(name for name in levels if levels[name])}")
    if (path := environment.get(_CONFIG)) and not Path(path).is_file():
        raise UsageError(f"{_CONFIG}: there is no file {quoted(path)}; correct it, or unset it")


@contextmanager
def _without_imports() -> Iterator[None]:
    """Make imports of vLLM and torch fail: they take seconds, and ``VLLM_PLUGINS`` is not set yet."""
    absent = [name for name in ("vllm", "torch") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@cache
def _readers() -> Mapping[str, Callable[[], Any]]:
    """Return vLLM's getters of its variables, ``vllm.envs.environment_variables``, without importing the package."""
    package = importlib.util.find_spec("vllm")
    assert package is not None and package.origin is not None
    spec = importlib.util.spec_from_file_location("vllm_envs", Path(package.origin).with_name("envs.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The getters look up their own module there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    readers: Mapping[str, Callable[[], Any]] = module.environment_variables
    return readers
