"""The base bound against the numbers of arXiv:2405.14591, and against its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.factors.check.base_bound import count_negative, first_negative, similarity
from ropeswitch.kernels.angles import inverse_frequencies

PAIRS = np.arange(64)
METHOD_1 = 5e6 ** (-2 * PAIRS / 128)
METHOD_2 = np.where(PAIRS >= 44, 1e4 ** (-2 * PAIRS / 128) / 8, (1e4 * 8 ** (128 / 88)) ** (-2 * PAIRS / 128))


@pytest.mark.parametrize(
    ("frequencies", "within_15k", "within_30k"), [(METHOD_1, 0, 0), (METHOD_2, 97, 2554)], ids=["method1", "method2"]
)
def test_published_counts(frequencies: np.ndarray, within_15k: int, within_30k: int) -> None:
    assert count_negative(frequencies, 15 * 1024) == within_15k
    assert count_negative(frequencies, 30 * 1024) == within_30k


@settings(max_examples=25, deadline=None)
@given(frequencies=st.lists(st.floats(1e-8, 1.0), min_size=1, max_size=70), length=st.integers(0, 5000))
def test_blocks_are_the_sum_of_cosines(frequencies: list[float], length: int) -> None:
    angles = np.arange(length + 1)[:, None] * np.array(frequencies)
    expected = np.cos(angles).sum(1)
    blocks = list(similarity(np.array(frequencies), length))
    assert [start for start, _ in blocks] == np.cumsum([0, *(len(values) for _, values in blocks[:-1])]).tolist()
    found = np.concatenate([values for _, values in blocks])
    assert found == pytest.approx(expected, abs=1e-10)
    # A sum that rounding alone keeps from 0 would have no sign to speak of.
    if np.abs(expected).min() > 1e-9:
        negative = np.flatnonzero(expected < 0)
        assert first_negative(np.array(frequencies), length) == (int(negative[0]) if len(negative) else None)
        assert count_negative(np.array(frequencies), length) == len(negative)


def test_a_million_distances_are_still_exact() -> None:
    frequencies = inverse_frequencies(5e8, 128, (1.0,) * 64)
    *_, (start, values) = similarity(frequencies, 1 << 20)
    distances = np.arange(start, start + len(values))
    assert values == pytest.approx(np.cos(distances[:, None] * frequencies).sum(1), abs=1e-8)
