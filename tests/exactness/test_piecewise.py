"""The model compiled as on a GPU, in pieces with our Triton op inside, run on a CPU; ``piecewise.py`` says how."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_cases() -> None:
    pytest.importorskip("triton", reason="Triton has no build for this machine")
    command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no", "-p", "tests.exactness.piecewise"]
    done = subprocess.run(
        [*command, str(FOLDER / "piecewise_cases.py")],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert "1 passed" in done.stdout
