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
# SIGINT, which a shell's background jobs inherit as ignored, lets pytest stop the servers of its tests within 60 s.
LIMIT = ["env", "--default-signal=INT", "timeout", "--foreground", "-s", "INT", "-k", "60"]


def run(steps: Mapping[str, Mapping[str, Any]], folder: Path, flags: Sequence[str]) -> int:
    """Run the steps, with a report each in ``folder``, and print a table; return the exit code. ``flags`` go to pytest."""
    folder.mkdir(parents=True, exist_ok=True)
    table = []
    for name, step in steps.items():
        print(f"test-gpu: {name}, at most {step['seconds']} s", flush=True)
        began = time.monotonic()
        command = [*LIMIT, str(step["seconds"]), sys.executable, "-m", "pytest", f"--junitxml={folder / name}.xml"]
        command += ["-m", "not million", *step["files"], *flags]
        variables = os.environ | VARIABLES | step.get("variables", {})
        process = subprocess.Popen(command, cwd=ROOT, env=variables, start_new_session=True)
        try:
            code = process.wait()
        finally:
            # An engine that is left would keep its share of the GPU.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        status = "timeout" if code in TIMED_OUT else "failed" if code else "passed"
        table.append(f"{name:<14} {status:<8} {time.monotonic() - began:>8.1f} s")
    print(*table, f"test-gpu: reports are in {folder}", sep="\n", flush=True)
    return int(not all(" passed " in row for row in table))


def main() -> int:
    parser = argparse.ArgumentParser(prog="test-gpu", description=__doc__, epilog="Other flags go to pytest.")
    parser.add_argument("--step", action="append", choices=STEPS, help="run only this step; may be repeated")
    args, flags = parser.parse_known_args()
    # In a separate process: this one must not hold memory of the GPU.
    code = "import torch; print('test-gpu:', torch.cuda.get_device_properties(0).name, 'with torch', torch.__version__)"
    found = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        sys.exit(f"test-gpu: error: no CUDA GPU was found: {found.stderr.strip().splitlines()[-1]}")
    return run({name: STEPS[name] for name in args.step or STEPS}, ROOT / "build" / "test-gpu", flags)


if __name__ == "__main__":
    sys.exit(main())
