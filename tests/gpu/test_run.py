"""`make test-gpu` reports every step: none stops the others, and a step that hangs or has no tests has not passed."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.gpu.run import ROOT, STEPS, run
from tests.gpu.settings import VARIABLES
from tests.server import running

FAILING = """
import os
def test_variable(): assert os.environ["STEP"] == "failing" and os.environ["TRITON_F32_DEFAULT"] == "ieee"
def test_wrong(): assert False
"""
# The fixture's process is in a separate session, as the tests' servers are.
SLOW = """
import pathlib, subprocess, time, pytest
@pytest.fixture
def server():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pathlib.Path(__file__).with_name("pid").write_text(str(process.pid))
    yield
    process.kill()
    process.wait()
def test_slow(server): time.sleep(600)
"""
CODES = {"failing": FAILING, "slow": SLOW, "empty": "", "passing": "def test_one(): pass\n"}


@pytest.mark.full
def test_each_step_is_reported_and_none_stops_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps = {}
    for name, code in CODES.items():
        file = tmp_path / f"test_{name}.py"
        file.write_text(code)
        steps[name] = {"files": [str(file)], "seconds": 20 if name == "slow" else 120, "variables": {"STEP": name}}
    assert run(steps, tmp_path / "reports", ["-q", "-p", "no:cacheprovider", "--noconftest"]) == 1
    *table, last = [line.split() for line in capfd.readouterr().out.splitlines()[-5:]]
    found = [["failing", "failed"], ["slow", "timeout"], ["empty", "failed"], ["passing", "passed"]]
    assert [row[:2] for row in table] == found and last[0] == "test-gpu:"
    assert 'tests="2"' in (tmp_path / "reports" / "failing.xml").read_text()
    # Killed; who reaps it, and when, is up to the machine.
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_steps_files_exist_and_without_a_gpu_none_runs() -> None:
    command = [sys.executable, "-m", "tests.gpu.run"]
    assert all((ROOT / file).exists() for each in STEPS.values() for file in each["files"])
    assert running.environment().items() >= VARIABLES.items(), "servers multiply exactly too"
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("test-gpu: error: no CUDA GPU was found: ")
