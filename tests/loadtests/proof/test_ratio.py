"""Ratios of perplexities and their intervals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.loadtests.proof.tables import Ratio, t_quantile


@given(st.lists(st.floats(0, 9), min_size=2, max_size=20))
def test_a_set_is_never_better_than_itself(losses: list[float]) -> None:
    assert Ratio.of(losses, losses) == Ratio(1.0, 1.0, 1.0)


def test_the_interval_is_of_the_differences() -> None:
    assert Ratio.of([1.0, 2.0, 3.0], [1.1, 2.1, 3.1]).high == pytest.approx(math.exp(-0.1))
    scattered = Ratio.of([1.0, 3.0, 2.0], [1.5, 2.4, 2.2])
    assert scattered.low < 1 < scattered.high
    with pytest.raises(ValueError, match="1 and 1 documents"):
        Ratio.of([1.0], [2.0])


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (10, 2.228), (11, 2.201), (40, 2.021), (120, 1.980)])
def test_quantiles_are_student_s(freedom: int, quantile: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2."""
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-3)
