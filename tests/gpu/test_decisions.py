"""A GPU serves as stock vLLM would, but for the ladder: decisions for an A100 and an H100, with neither."""

from pathlib import Path

import pytest

from tests.fresh_process import check_cases

pytest.importorskip("triton", reason="Triton has no build for this machine")


@pytest.mark.full
@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_decisions_on_a_gpu(gpu: str) -> None:
    variables = {"ROPESWITCH_TEST_GPU": gpu, "TRITON_INTERPRET": "0"}
    cases = Path(__file__).with_name("decision_cases.py")
    check_cases(cases, at_least=12, flags=("-p", "tests.gpu.fake_cuda"), variables=variables)
