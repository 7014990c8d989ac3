"""Shape: what rises, what falls, and which angles training never saw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.check.sets import check, shape
from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.rules.catalogue import rule
from ropeswitch.factors.rules.make import make, targets_for
from ropeswitch.factors.rules.rope import Rope

LLAMA_2 = Rope(128, 10000.0, 4096)


def test_without_factors_the_pairs_from_the_critical_one_on_are_beyond_training() -> None:
    """arXiv:2310.05209: 92 of LLaMA2's 128 values, 46 pairs, saw a whole turn."""
    plain = FactorSet("plain", 32768, (1.0,) * 64)
    assert shape(LLAMA_2, plain, 32768).unseen == tuple(range(46, 64))
    assert shape(LLAMA_2, plain, 4096).unseen == ()
    # Pair 63 sees 4096 of 54,410 tokens' turn in training and 32,767 now.
    last = shape(LLAMA_2, plain, 32768).pairs[-1]
    assert last.unseen == pytest.approx((32767 - 4096) / LLAMA_2.wavelength(63), rel=1e-12)


@pytest.mark.parametrize("name", ["pi", "yarn", "theta", "longrope2"])
def test_rules_after_the_out_of_distribution_theory_leave_nothing_unseen(name: str) -> None:
    """LongRoPE2, arXiv:2502.20082, section 2.2: lambda_i >= s from the critical pair on."""
    [made] = make(rule(name), LLAMA_2, targets_for(LLAMA_2, [131072])).ladder.sets
    assert shape(LLAMA_2, made, 131072).unseen == ()
    assert shape(LLAMA_2, made, 262144).unseen != ()


def test_ntk_aware_leaves_unseen_angles() -> None:
    """The same section: its factors are too small before the last pair."""
    [made] = make(rule("ntk"), LLAMA_2, targets_for(LLAMA_2, [131072])).ladder.sets
    assert shape(LLAMA_2, made, 131072).unseen == tuple(range(46, 63))


def test_what_falls_is_a_warning() -> None:
    made = FactorSet("odd", 4096, (0.9, *[2.0] * 9, 1.5, *[3.0] * 53))
    found = shape(LLAMA_2, made, 4096)
    assert (found.lowest, found.highest, found.falls, found.below_one) == (0.9, 3.0, (10,), (0,))
    warned = check(LLAMA_2, made).warnings
    assert warned[0] == "factors decrease at pair 10, as some published lists do"
    assert warned[1].startswith("factors below 1 at pair 0")


@given(st.lists(st.floats(0.5, 100), min_size=64, max_size=64), st.integers(1, 1 << 21))
def test_unseen_shares_of_any_set(factors: list[float], length: int) -> None:
    found = shape(LLAMA_2, FactorSet("any", length, tuple(factors)), length)
    for pair in found.pairs:
        beyond = (length - 1) / pair.wavelength > pair.turns
        assert (pair.unseen > 0) == (beyond and pair.turns < 1)
        assert 0 <= pair.unseen <= 1
