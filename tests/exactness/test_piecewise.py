"""The model compiled as on a GPU, in pieces with our Triton op inside, run on a CPU; ``piecewise.py`` says how."""

import shutil
from pathlib import Path

import pytest

from tests.fresh_process import check_cases


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_cases() -> None:
    pytest.importorskip("triton", reason="Triton has no build for this machine")
    cases = Path(__file__).with_name("piecewise_cases.py")
    check_cases(cases, at_least=1, flags=["-p", "tests.exactness.piecewise"])
