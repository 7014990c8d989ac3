"""``vllm.entrypoints.cli.serve.wait_for_completion_or_failure``: wrapped to record that a process of the server has died.

The process that started several API servers stops them with the same signal whether it was stopped itself, or the engine or
one of them died. The API servers have no engine process, so they cannot tell which. Here the parent first creates a marker
file next to the file of ``refusals.py``, and they end their requests in flight with errors, because no engine is left to
compute them.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from ropeswitch.server.refusals import VARIABLE


def marking(upstream: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``wait_for_completion_or_failure`` to create the marker file when it finds a dead process."""

    @wraps(upstream)
    def wait_for_completion_or_failure(*args: Any, **kwargs: Any) -> None:
        try:
            upstream(*args, **kwargs)
        except RuntimeError:
            _mark().touch()
            raise

    return wait_for_completion_or_failure


def marked() -> bool:
    """Whether the server is stopping because one of its processes has died."""
    return VARIABLE in os.environ and _mark().exists()


def _mark() -> Path:
    return Path(os.environ[VARIABLE]).with_name("death")
