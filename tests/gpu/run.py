"""Runs the tests that need a CUDA GPU, step by step, and writes JUnit XML and a summary; ``make test-gpu`` calls it.

Each step is a separate pytest process with its own time limit. A step that fails or runs out of time does not stop the
others.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.settings import VARIABLES

ROOT = Path(__file__).parents[2]
TIMED_OUT = (124, 137)
# For pytest to stop the servers that it has started.
STOP_SECONDS = "60"
EXACTNESS = ["runner_cases", "test_modes", "test_prefix_cache", "test_ladders", "test_policy", "test_features"]
EXACTNESS += ["test_drafts", "test_speculation", "test_kv_offloading", "test_auto_kinds"]
EXACTNESS = [f"tests/exactness/{name}.py" for name in EXACTNESS]
BFLOAT16 = ["tests/exactness/test_bfloat16.py"]
SLEEP = ["tests/exactness/gpu_cases.py"]
SERVER = ["test_exactness", "test_openai_api", "test_length_metrics", "test_scheduling_metrics"]
SERVER += ["test_factor_sets_api"]
SERVER = [f"tests/server/{name}.py" for name in SERVER]
V1, V2 = ({"VLLM_USE_V2_MODEL_RUNNER": number, "ROPESWITCH_TEST_ASYNC": "1"} for number in "01")


@dataclass(frozen=True)
class Step:
    """Test files, the environment variables that they run under, and the most seconds that they may take."""

    name: str
    files: Sequence[str]
    seconds: int
    variables: Mapping[str, str] = field(default_factory=dict)


STEPS = (
    Step("kernels", ["tests/kernels"], 600),
    Step("exactness-v2", EXACTNESS, 1800, V2),
    Step("exactness-v1", EXACTNESS, 1800, V1),
    Step("bfloat16-v2", BFLOAT16, 900, V2),
    Step("bfloat16-v1", BFLOAT16, 900, V1),
    Step("sleep-v2", SLEEP, 600, V2),
    Step("sleep-v1", SLEEP, 600, V1),
    Step("server", SERVER, 1800),
)


def run_step(step: Step, report: Path, flags: Sequence[str]) -> str:
    """Run one step and everything that it starts, for at most its time, and write ``report`` (JUnit XML).

    ``flags`` go to pytest. Returns passed, failed or timeout.
    """
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", "-m", "not million", *step.files, *flags]
    # SIGINT, which a shell's background jobs inherit as ignored, lets pytest stop the servers of its tests.
    limit = [
        "env",
        "--default-signal=INT",
        "timeout",
        "--foreground",
        "-s",
        "INT",
        "-k",
        STOP_SECONDS,
        str(step.seconds),
    ]
    variables = os.environ | VARIABLES | step.variables
    process = subprocess.Popen([*limit, *command], cwd=ROOT, env=variables, start_new_session=True)
    try:
        code = process.wait()
    finally:
        # An engine that is left would keep its share of the GPU.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "timeout" if code in TIMED_OUT else "failed" if code else "passed"


def run(steps: Sequence[Step], folder: Path, flags: Sequence[str]) -> int:
    """Run the steps, with a report each in ``folder``, and print a table; return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {}
    for step in steps:
        print(f"test-gpu: {step.name}, at most {step.seconds} s", flush=True)
        began = time.monotonic()
        table[step.name] = run_step(step, folder / f"{step.name}.xml", flags), time.monotonic() - began
    print(f"\n{'step':<14} {'status':<8} {'seconds':>8}")
    for name, (status, seconds) in table.items():
        print(f"{name:<14} {status:<8} {seconds:>8.1f}")
    print(f"test-gpu: reports are in {folder}", flush=True)
    return int(any(status != "passed" for status, _ in table.values()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="test-gpu", description=__doc__, epilog="Other flags go to pytest.")
    names = [step.name for step in STEPS]
    parser.add_argument("--step", action="append", choices=names, help="run only this step; may be repeated")
    folder = Path("build/test-gpu")
    parser.add_argument("--reports", type=Path, default=folder, help="folder of the JUnit XML reports (%(default)s)")
    args, flags = parser.parse_known_args()
    # In a separate process: this one must not hold memory of the GPU.
    code = "import torch; print('test-gpu:', torch.cuda.get_device_properties(0).name, 'with torch', torch.__version__)"
    if (
        found := subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    ).returncode:
        sys.exit(f"test-gpu: error: no CUDA GPU was found: {found.stderr.strip().splitlines()[-1]}")
    return run([step for step in STEPS if step.name in (args.step or names)], args.reports.resolve(), flags)


if __name__ == "__main__":
    sys.exit(main())
