"""Checks ``--middleware`` before the engine starts; vLLM imports it only once the engine is running."""

import importlib
import inspect
from collections.abc import Sequence

from ropeswitch.factors.errors import UsageError


def check(paths: Sequence[str]) -> None:
    """Refuse a path that vLLM cannot add to its app (``init_entrypoints_middleware``).

    Args:
        paths: Values of the flag, such as ``package.module.Class``.

    Raises:
        UsageError: naming the path and what is wrong with it.
    """
    for path in paths:
        module, _, name = path.rpartition(".")
        if not module:
            raise UsageError(f"--middleware: {path!r} must be MODULE.NAME, a class or a coroutine function")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"--middleware: {path!r} cannot be imported: {error}; check the name and PYTHONPATH"
            ) from error
        if not (inspect.isclass(found) or inspect.iscoroutinefunction(found)):
            raise UsageError(
                f"--middleware: {path!r} must be a class or a coroutine function, found {type(found).__name__}"
            )
