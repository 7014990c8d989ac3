"""From lengths to spaces, starts and scales."""

import math

import pytest

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.model_facts import ModelFacts
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.search.plan import extension, recovery
from ropeswitch.factors.search.settings import SearchSettings

LLAMA2 = ModelFacts("Llama-2-7b", Rope(128, 10000.0, 4096), None, None)
K = 1024
TUNED = FactorSet("256k", 256 * K, tuple(1 + i for i in range(64)), 1.3)


def settings(length: int) -> SearchSettings:
    return SearchSettings.paper(length * K)


def test_a_first_search() -> None:
    """32k on LLaMA2: factors from 1 to 1.25 times 8; the starts are PI, NTK and YaRN for 8."""
    plan = extension(LLAMA2, settings(32))
    assert (plan.space.pairs, plan.space.upper, plan.base) == (64, 1000, None)
    pi, ntk, yarn = (start.factors() for start in plan.starts)
    assert pi == (8.0,) * 64
    assert (ntk[0], ntk[-1]) == (1.0, 8.0) and ntk[32] == pytest.approx(8 ** (32 / 63), abs=0.005)
    assert yarn[:16] == (1.0,) * 16 and yarn[-1] == 8.0
    assert plan.scale == pytest.approx(math.sqrt(1 + math.log(8) / math.log(4096)))


def test_a_second_search_multiplies_the_set_that_the_model_was_tuned_with() -> None:
    plan = extension(LLAMA2, settings(2048), TUNED, scale="none")
    assert (plan.space.upper, plan.base, plan.scale) == (1000, TUNED.factors, 1.0)
    made = plan.factor_set(plan.starts[0], "2048k", 2048 * K)
    assert made == FactorSet("2048k", 2048 * K, tuple(8.0 * factor for factor in TUNED.factors), 1.0)
    assert extension(LLAMA2, settings(2048), TUNED).scale == pytest.approx(math.sqrt(1.75))


def test_a_recovery_has_a_smaller_end_and_the_extended_set_among_its_starts() -> None:
    plan = recovery(LLAMA2, settings(8), TUNED)
    assert plan.space.upper == 6400 < extension(LLAMA2, settings(256)).space.upper
    assert (plan.base, plan.scale) == (None, 1.3)
    assert plan.starts[0].factors() == (2.0,) * 64 and plan.starts[-1].factors() == TUNED.factors
    small = recovery(LLAMA2, settings(4), TUNED, upper=2.0)
    assert small.space.upper == 200 and all(max(start.hundredths) <= 200 for start in small.starts)
