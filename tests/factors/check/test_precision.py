"""Errors of cos and sin: what docs/architecture.md prints for each arithmetic, and that it is measured."""

import numpy as np
import pytest

from ropeswitch.factors.check.precision import precision
from ropeswitch.factors.factor_set import FactorSet

# Published for LLaMA2-7B at 2048k (microsoft/LongRoPE): factors rise from 1 to 543.68; these rise alike.
RISING = FactorSet("2048k", 1 << 21, tuple(float(each) for each in np.geomspace(1, 512, 64)))


@pytest.mark.parametrize(
    ("length", "float32"), [(1 << 13, 9.5e-4), (1 << 17, 1.5e-2), (1 << 20, 0.12), (1 << 21, 0.24)]
)
def test_float32_errors_grow_and_ours_do_not(length: int, float32: float) -> None:
    found = precision(10000.0, RISING, length)
    assert found.float32 == pytest.approx(float32, rel=0.6)
    assert found.bfloat16 >= 0.9 * found.float32
    # Half a step of bfloat16 below 1.
    assert found.bfloat16_exact == pytest.approx(2**-9, rel=0.01)
    assert found.ours < 2e-7
