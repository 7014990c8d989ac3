"""The run of the GPU's tests, with steps that need none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.gpu.run import ROOT, STEPS, Step, run, run_step

PASSING = "def test_one(): pass\n"
MIXED = """
import os, pytest
def test_variable(): assert os.environ["STEP"] == "mixed" and os.environ["TRITON_F32_DEFAULT"] == "ieee"
def test_wrong(): assert False
@pytest.fixture
def broken(): raise OSError
def test_error(broken): pass
@pytest.mark.skip
def test_left_out(): pass
"""
# The fixture's process is in a session of its own, as the tests' servers are.
SLOW = """
import pathlib, subprocess, time, pytest
@pytest.fixture
def server():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pathlib.Path(__file__).with_name("pid").write_text(str(process.pid))
    yield
    process.kill()
    process.wait()
def test_fast(): pass
def test_slow(server): time.sleep(600)
"""


def step(folder: Path, name: str, code: str, seconds: int = 120) -> Step:
    file = folder / f"test_{name}.py"
    file.write_text(code)
    return Step(name, [str(file)], seconds, {"STEP": name})


def test_each_step_is_reported_and_none_stops_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps = [step(tmp_path, "mixed", MIXED), step(tmp_path, "slow", SLOW, 12), step(tmp_path, "passing", PASSING)]
    results = tmp_path / "results.json"
    assert run(steps, {"gpu": "none"}, results, ["-q", "-p", "no:cacheprovider"]) == 1
    written = json.loads(results.read_text())
    assert written["machine"] == {"gpu": "none"}
    mixed, slow, passing = written["steps"]
    assert (mixed["status"], mixed["tests"]) == ("failed", {"passed": 1, "failed": 2, "skipped": 1, "running": 0})
    assert [test.partition("::")[2] for test in mixed["failing"]] == ["test_wrong", "test_error"]
    assert (slow["status"], slow["tests"]["passed"], slow["tests"]["running"]) == ("timeout", 1, 1)
    assert [test.partition("::")[2] for test in slow["failing"]] == ["test_slow"]
    assert (passing["status"], passing["failing"]) == ("passed", [])
    # Killed; who reaps it, and when, is up to the machine.
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    *lines, last = capfd.readouterr().out.splitlines()[-7:]
    assert [line.split()[:2] for line in lines[:3]] == [["mixed", "failed"], ["slow", "timeout"], ["passing", "passed"]]
    assert lines[3:] == [f"failed: {each['name']}: {test}" for each in (mixed, slow) for test in each["failing"]]
    assert last == f"test-gpu: results are in {results}"


def test_all_passed(tmp_path: Path) -> None:
    assert run([step(tmp_path, "passing", PASSING)], {}, tmp_path / "results.json", ["-q"]) == 0


def test_a_step_without_tests_has_failed(tmp_path: Path) -> None:
    assert run_step(step(tmp_path, "passing", PASSING), ["-q", "-k", "nothing"]).status == "failed"


def test_the_steps_name_files_that_are_there() -> None:
    assert all((ROOT / file).exists() for each in STEPS for file in each.files)
    assert all(each.seconds <= 1800 for each in STEPS)


def test_without_a_gpu_nothing_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.run", "--json", str(tmp_path / "results.json")]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("test-gpu: error: no CUDA GPU was found: ")
    assert list(tmp_path.iterdir()) == []
