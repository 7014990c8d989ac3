"""Without a GPU the Triton ops run in Triton's interpreter here, and nowhere else."""

import importlib
import importlib.util
import os
import subprocess
import sys

import pytest
import torch

OPS = ("fill_rows_triton", "apply_rows_triton")


def import_interpreted() -> None:
    """Import the Triton ops so that they are interpreted; whatever is imported later is not.

    ``@triton.jit`` asks the knob when it decorates. Left to itself, setting the knob also sets ``TRITON_INTERPRET``, which
    processes started by other tests would inherit.
    """
    import triton

    propagate, triton.knobs.propagate_env = triton.knobs.propagate_env, False
    try:
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = True
            for name in OPS:
                importlib.import_module(f"ropeswitch.kernels.{name}")
    finally:
        triton.knobs.propagate_env = propagate


# The CPU engine's Triton comes with x86-64 Linux only; elsewhere these tests are skipped where they import it.
if importlib.util.find_spec("triton") and not torch.cuda.is_available():
    import_interpreted()


def rounding(dtype: torch.dtype) -> float:
    """The largest relative error of one cast to ``dtype``: half a unit in the last place; the interpreter cuts bf16 off."""
    cut_off = dtype == torch.bfloat16 and not torch.cuda.is_available()
    return torch.finfo(dtype).eps * (1.0 if cut_off else 0.5)


def outside_the_interpreter(*arguments: str) -> str:
    """What Python prints with these arguments, in a process where nothing is interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the Triton ops run: the GPU if there is one, else the CPU, interpreted."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
