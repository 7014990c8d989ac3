"""Runs the tests that need a CUDA GPU, step by step, and writes a summary and JSON; ``make test-gpu`` calls it.

Each step is a pytest process of its own with its own time limit. A step that fails or runs out of time does not stop the
others.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.gpu import outcomes
from tests.gpu.settings import VARIABLES

ROOT = Path(__file__).parents[2]
# For pytest to stop the servers that it has started.
STOP_SECONDS = 60
PACKAGES = ("ropeswitch", "vllm", "torch", "triton", "transformers", "flashinfer-python")
EXACTNESS = ["runner_cases", "test_modes", "test_prefix_cache", "test_ladders", "test_policy", "test_features"]
EXACTNESS += ["test_drafts", "test_speculation", "test_kv_offloading", "test_auto_kinds"]
EXACTNESS = [f"tests/exactness/{name}.py" for name in EXACTNESS]
BFLOAT16 = ["tests/exactness/test_bfloat16.py"]
SLEEP = ["tests/exactness/gpu_cases.py"]
SERVER = ["test_exactness", "test_openai_api", "test_length_metrics", "test_factor_sets_api"]
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


@dataclass(frozen=True)
class Result:
    """A step: ``passed``, ``failed`` or ``timeout``; its tests by outcome; those that failed or never ended."""

    name: str
    status: str
    seconds: float
    tests: Mapping[str, int]
    failing: Sequence[str]


def run_step(step: Step, flags: Sequence[str]) -> Result:
    """Run one step and everything that it starts, for at most its time.

    Args:
        step: The step.
        flags: More flags for pytest.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcomes")
        command = [sys.executable, "-m", "pytest", "-p", outcomes.__name__, "-m", "not million", *step.files]
        environment = os.environ | VARIABLES | step.variables | {outcomes.VARIABLE: str(file)}
        with _ended(
            subprocess.Popen(
                [*command, *flags], cwd=ROOT, env=environment, start_new_session=True, preexec_fn=_interruptible
            )
        ) as process:
            try:
                code: int | None = process.wait(step.seconds)
            except subprocess.TimeoutExpired:
                code = None
                # pytest then stops the servers of its tests, which are not in its session.
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
        found = outcomes.read(file)
    tests = outcomes.counted(found)
    status = "timeout" if code is None else "passed" if code == 0 and tests["passed"] else "failed"
    failing = [test for test, outcome in found.items() if outcome in ("failed", outcomes.RUNNING)]
    return Result(step.name, status, round(time.monotonic() - began, 1), tests, failing)


def _interruptible() -> None:
    """In the new process: take SIGINT, which a shell's background jobs inherit as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """Kill whatever is left of the process's session at the end: an engine would keep its share of the GPU."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def describe() -> dict[str, Any]:
    """The GPU, its driver and the versions of what runs on it.

    Raises:
        SystemExit: where torch finds no CUDA GPU.
    """
    # In a process of its own: this one must not hold memory of the GPU.
    code = "import json, torch; p = torch.cuda.get_device_properties(0); print(json.dumps([p.name, p.total_memory]))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        sys.exit(f"test-gpu: error: no CUDA GPU was found: {found.stderr.strip().splitlines()[-1]}")
    name, memory = json.loads(found.stdout)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "gpu": name,
        "memory_bytes": memory,
        "driver": driver or None,
        "versions": {p: _version(p) for p in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def summary(results: Sequence[Result]) -> list[str]:
    """One line a step, then the tests that failed."""
    lines = [f"{'step':<14} {'status':<8} {'seconds':>8} {'passed':>7} {'failed':>7} {'skipped':>8}"]
    for each in results:
        counts = f"{each.tests['passed']:>7} {each.tests['failed']:>7} {each.tests['skipped']:>8}"
        lines.append(f"{each.name:<14} {each.status:<8} {each.seconds:>8} {counts}")
    return lines + [f"failed: {each.name}: {test}" for each in results for test in each.failing]


def run(steps: Sequence[Step], machine: Mapping[str, Any], file: Path, flags: Sequence[str]) -> int:
    """Run the steps; after each, write all results so far to ``file``. Returns the exit code."""
    results: list[Result] = []
    file.parent.mkdir(parents=True, exist_ok=True)
    for step in steps:
        print(f"test-gpu: {step.name}, at most {step.seconds} s", flush=True)
        results.append(run_step(step, flags))
        text = json.dumps({"machine": machine, "steps": [asdict(each) for each in results]}, indent=2)
        file.write_text(text + "\n", encoding="utf-8")
    print("\n".join(("", *summary(results), f"test-gpu: results are in {file}")), flush=True)
    return int(any(each.status != "passed" for each in results))


def main() -> int:
    parser = argparse.ArgumentParser(prog="test-gpu", description=__doc__, epilog="Other flags go to pytest.")
    names = [step.name for step in STEPS]
    parser.add_argument("--step", action="append", choices=names, help="run only this step; may be repeated")
    parser.add_argument(
        "--json", type=Path, default=Path("build/test-gpu.json"), help="file of the results (%(default)s)"
    )
    args, flags = parser.parse_known_args()
    chosen = [step for step in STEPS if step.name in (args.step or names)]
    return run(chosen, describe(), args.json, flags)


if __name__ == "__main__":
    sys.exit(main())
