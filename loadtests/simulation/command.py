"""Shared parts of the simulator's commands: option parsing, one-line errors for bad input, and exit codes."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ropeswitch.factors.errors import InputError, UsageError
from ropeswitch.factors.numbers import flag, number

if TYPE_CHECKING:
    from ropeswitch.loadtests.simulation.cluster import Cluster


def run(name: str, command: Callable[[], None]) -> int:
    """Run a command and return its exit code.

    Returns:
        The exit code: 0; 2 for bad input, with one line on standard error; 130 after Ctrl-C.
    """
    # vLLM reads these variables when it is imported.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        command()
    except (InputError, OSError) as error:
        print(f"{name}: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped by Ctrl-C", file=sys.stderr, flush=True)
        return 130
    return 0


def targets(text: str) -> tuple[float, ...]:
    """Parse comma-separated latency targets in seconds."""
    return tuple(flag(number, 0.001, 60)(part) for part in text.split(","))


def check_fits(cluster: "Cluster", longest: int) -> None:
    """Refuse a longest prompt that does not fit into the cluster's KV cache.

    Raises:
        UsageError: with the allowed length.
    """
    if longest + 512 > cluster.kv_tokens:
        raise UsageError(
            f"--longest: {longest} tokens plus an answer do not fit: {cluster.gpus} x {cluster.gpu.name} hold "
            f"{cluster.kv_tokens} tokens of {cluster.model}; use at most {cluster.kv_tokens - 512}, or more --gpus"
        )
