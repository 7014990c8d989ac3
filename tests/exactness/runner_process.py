"""Runs tests on what vLLM uses on GPUs, on a CPU: the V2 runner, asynchronous scheduling, our Triton kernels, interpreted.

Triton and vLLM look at the environment while they are imported, so each combination has a pytest process of its own; see
``interpreted.py`` for what the processes change.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.fresh_process import check_cases

FOLDER = Path(__file__).parent
# Inductor wants a real Triton.
NOT_INTERPRETED = "not compiled"


def run_cases(
    v2: str, asynchronous: str, triton: str, files: Sequence[str], chosen: str, marked: str, at_least: int
) -> None:
    """Run tests in a process of their own; none may fail.

    Args:
        v2, asynchronous, triton: ``1`` for the V2 runner, asynchronous scheduling and our Triton kernels, else ``0``.
        files: Files in this folder.
        chosen: pytest's expression that chooses tests by name; empty for all.
        marked: pytest's expression that chooses tests by mark.
        at_least: Number of tests that must pass. With fewer, a part of ``chosen`` matches nothing any more.
    """
    variables = {
        "VLLM_USE_V2_MODEL_RUNNER": v2,
        "ROPESWITCH_TEST_ASYNC": asynchronous,
        "ROPESWITCH_TEST_TRITON": triton,
        "PYTHONPATH": os.pathsep.join((str(FOLDER / "spawned"), str(FOLDER.parents[1]))),
    }
    selected = f"({chosen}) and {NOT_INTERPRETED}" if chosen else NOT_INTERPRETED
    flags = ["-p", "tests.exactness.interpreted", "-m", marked, "-k", selected]
    check_cases(*(FOLDER / file for file in files), at_least=at_least, flags=flags, variables=variables)
