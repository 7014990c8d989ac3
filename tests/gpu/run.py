"""Runs the tests that need a CUDA GPU, step by step (steps.yaml), and prints a summary; ``make test-gpu`` calls it.

Each step is a separate pytest process with its own time limit and a JUnit XML report. A step that fails or runs out of time
does not stop the others.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.gpu.settings import VARIABLES

ROOT = Path(__file__).parents[2]
STEPS = yaml.safe_load(Path(__file__).with_name("steps.yaml").read_text(encoding="utf-8"))["steps"]
TIMED_OUT = (124, 137)
# For pytest to stop the servers that it has started.
STOP_SECONDS = "60"
Step = Mapping[str, Any]


def run_step(step: Step, report: Path, flags: Sequence[str]) -> str:
    """Run one step and everything that it starts, for at most its time, and write ``report`` (JUnit XML).

    ``flags`` go to pytest. Returns passed, failed or timeout.
    """
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", "-m", "not million", *step["files"], *flags]
    # SIGINT, which a shell's background jobs inherit as ignored, lets pytest stop the servers of its tests.
    limit = ["env", "--default-signal=INT", "timeout", "--foreground", "-s", "INT", "-k", STOP_SECONDS]
    limit.append(str(step["seconds"]))
    variables = os.environ | VARIABLES | step.get("variables", {})
    process = subprocess.Popen([*limit, *command], cwd=ROOT, env=variables, start_new_session=True)
    try:
        code = process.wait()
    finally:
        # An engine that is left would keep its share of the GPU.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "timeout" if code in TIMED_OUT else "failed" if code else "passed"


def run(steps: Mapping[str, Step], folder: Path, flags: Sequence[str]) -> int:
    """Run the steps, with a report each in ``folder``, and print a table; return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {}
    for name, step in steps.items():
        print(f"test-gpu: {name}, at most {step['seconds']} s", flush=True)
        began = time.monotonic()
        table[name] = run_step(step, folder / f"{name}.xml", flags), time.monotonic() - began
    for name, (status, seconds) in table.items():
        print(f"{name:<14} {status:<8} {seconds:>8.1f} s")
    print(f"test-gpu: reports are in {folder}", flush=True)
    return int(any(status != "passed" for status, _ in table.values()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="test-gpu", description=__doc__, epilog="Other flags go to pytest.")
    parser.add_argument("--step", action="append", choices=STEPS, help="run only this step; may be repeated")
    folder = Path("build/test-gpu")
    parser.add_argument("--reports", type=Path, default=folder, help="folder of the JUnit XML reports (%(default)s)")
    args, flags = parser.parse_known_args()
    # In a separate process: this one must not hold memory of the GPU.
    code = "import torch; print('test-gpu:', torch.cuda.get_device_properties(0).name, 'with torch', torch.__version__)"
    if (
        found := subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    ).returncode:
        sys.exit(f"test-gpu: error: no CUDA GPU was found: {found.stderr.strip().splitlines()[-1]}")
    return run({name: STEPS[name] for name in args.step or STEPS}, args.reports.resolve(), flags)


if __name__ == "__main__":
    sys.exit(main())
