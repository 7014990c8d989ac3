"""Images and videos on both runners and with asynchronous scheduling, on a CPU as in ``tests/exactness/test_runners.py``."""

from pathlib import Path

import pytest

from tests.fresh_process import check_cases

FOLDER = Path(__file__).parent


@pytest.mark.parametrize(("v2", "asynchronous"), [("0", "1"), ("1", "1")])
def test_media(v2: str, asynchronous: str) -> None:
    variables = {
        "VLLM_USE_V2_MODEL_RUNNER": v2, "ROPESWITCH_TEST_ASYNC": asynchronous, "ROPESWITCH_TEST_TRITON": "0",
    }  # fmt: skip
    flags = ["-p", "tests.exactness.interpreted", "-k", "qwen2.5-vl or time_axis or level_2"]
    check_cases(FOLDER / "test_media.py", FOLDER / "test_modes.py", at_least=3, flags=flags, variables=variables)
