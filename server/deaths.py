"""``vllm.entrypoints.cli.serve.wait_for_completion_or_failure``: wrapped to tell API servers why they are told to leave.

Where there are several API servers, the process that started them tells them to leave with the same signal whether it was
told to, or the engine or one of them has died; they own no engine, so they do not see which. Here that process leaves a mark
first, beside the file of ``refusals.py``, and they end what they have in hand with errors: nobody computes it any more.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from ropeswitch.server.refusals import VARIABLE


def marking(upstream: Callable[..., None]) -> Callable[..., None]:
    """A function that waits for the server's processes as ``upstream`` does, and marks that one of them died."""

    @wraps(upstream)
    def wait_for_completion_or_failure(*args: Any, **kwargs: Any) -> None:
        try:
            upstream(*args, **kwargs)
        except RuntimeError:
            _mark().touch()
            raise

    return wait_for_completion_or_failure


def marked() -> bool:
    """Whether the server leaves because one of its processes has died."""
    return VARIABLE in os.environ and _mark().exists()


def _mark() -> Path:
    return Path(os.environ[VARIABLE]).with_name("death")
