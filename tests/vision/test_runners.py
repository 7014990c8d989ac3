"""Images and videos on both runners and with asynchronous scheduling, on a CPU as in ``tests/exactness/test_runners.py``."""

import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT


@pytest.mark.full
@pytest.mark.parametrize(("v2", "asynchronous"), [("0", "1"), ("1", "0"), ("1", "1")])
def test_media(v2: str, asynchronous: str) -> None:
    environment = os.environ | {
        "VLLM_USE_V2_MODEL_RUNNER": v2, "ROPESWITCH_TEST_ASYNC": asynchronous, "ROPESWITCH_TEST_TRITON": "0",
    }  # fmt: skip
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "--show-capture=no", "-p", "tests.exactness.interpreted",
            "tests/vision/test_media.py", "tests/vision/test_sleep.py", "-k", "qwen2.5-vl or time_axis or level_2",
        ],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert "3 passed" in done.stdout
